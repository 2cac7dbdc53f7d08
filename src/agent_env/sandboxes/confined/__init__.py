"""What confined sandboxes of this machine share, whatever their root is made of."""
