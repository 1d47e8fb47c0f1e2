"""The kinds of database a party can have, one file each; the other files are what several kinds share."""
