"""Passes from a level to the same level; one file, one class and one command-line name each (see `lamella.registry`)."""
