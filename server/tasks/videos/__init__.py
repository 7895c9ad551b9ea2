"""Videos: what is asked, the media with it, and the jobs that are kept."""
