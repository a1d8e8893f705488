"""Every rule of kvgate. A function that makes findings from a Budget stands below its rule; others stand where their input is read."""
