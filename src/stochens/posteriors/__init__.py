"""Sources of members other than plain training."""
