"""What changes a training image at random: crops, RandAugment, mixing, and masks and boxes that move along."""
