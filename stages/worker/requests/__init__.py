"""Holds what comes for requests of a stage: media, text, announcements, room to answer."""
