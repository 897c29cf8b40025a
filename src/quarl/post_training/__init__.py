"""Post-training quantization, `quarl ptq` and `quarl.ptq`: one policy measured at several precisions.

`measure` is the method, `layer_bits` its search with `--auto`, and `table` the function for Python. The arithmetic is
`quarl.calibration`. No module is called `quarl.ptq`, because the function of that name is.
"""
