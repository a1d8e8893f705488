"""Text that other people wrote: measured, expanded and made harmless where it is printed."""
