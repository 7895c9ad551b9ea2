"""Common first steps of all stages: device, dtype, and whether the stage fits there."""
