"""One file a family: a configuration's fields enter, the building blocks the family is made of leave; with the names of its tensors."""
