"""One file per kind of data: class folders, tables, shards, arrays, named data sets, masks, boxes, faces."""
