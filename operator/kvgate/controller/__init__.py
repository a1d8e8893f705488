"""The process that reconciles: watches, and one level-based function decides and acts."""
