"""Child processes: what they do first and last, who starts them, hears them and ends them."""
