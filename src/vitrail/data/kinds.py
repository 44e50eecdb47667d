"""What each kind of data is, for the end of a sentence. This file imports nothing: help and options need it at once."""

ANY = "labelled images, as the model was trained on"
LABELLED = "class folders, a .csv or .parquet table, .tar shards, an .npz, or the name of a data set"
IMAGES = "images in folders, a .csv or .parquet table, .tar shards, an .npz, or the name of a data set"
MASKS = "images/ beside masks/, a table path,mask, or COCO's JSON"
BOXES = "COCO's JSON, Annotations/NAME.xml (Pascal VOC), or labels/NAME.txt (YOLO)"
VALUES = "a .csv or .parquet table path,value[,value2…][,split]"
FACES = "a folder with live/ and attack folders, a .csv table, or a folder of lists"

FACE_MARGIN = 0.3  # of the face box's longer side, added on every side: the edge of a photograph or screen is evidence
