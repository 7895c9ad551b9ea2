"""Chats, speech, images and all else that clients ask for, without HTTP."""
