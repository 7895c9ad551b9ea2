"""What every stage does first: its device, its dtype, and whether it fits there."""
