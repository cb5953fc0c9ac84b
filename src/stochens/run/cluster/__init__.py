"""Work in pieces on the machines of a Ray cluster. Nothing here is imported before it is asked for
but `connect.Ray`, which names a cluster and needs no Ray."""
