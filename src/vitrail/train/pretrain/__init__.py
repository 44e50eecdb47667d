"""`vitrail.pretrain`: a masked autoencoder from pictures alone, to be continued by `train --weights RUN`."""
