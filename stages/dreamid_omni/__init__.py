"""DreamID-Omni: videos with speech of faces and voices, by two Wan transformers that are one."""
