"""One program between the network and the loop: all members at once, by stacked operators."""
