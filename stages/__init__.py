"""The processes of stages."""

from omnistage.stages import cpu_shim

# Before any model library: beside torch's CPU build pip may have brought others for CUDA.
cpu_shim.install()
