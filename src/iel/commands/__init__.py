"""What the commands do between parsing and printing: one short story a file, over the other rooms."""
