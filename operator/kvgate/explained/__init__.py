"""A budget explained to people: formulas with their numbers, the rule of thumb beside them, and blocks step by step."""
