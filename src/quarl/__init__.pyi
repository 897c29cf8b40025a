from quarl.api import Agent as Agent
from quarl.api import distill as distill
from quarl.api import evaluate as evaluate
from quarl.api import from_module as from_module
from quarl.api import from_sb3 as from_sb3
from quarl.api import load as load
from quarl.errors import QuarlError as QuarlError
from quarl.post_training.table import ptq as ptq

__version__: str
