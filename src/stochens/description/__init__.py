"""What a method makes of a network, told before and after training."""
