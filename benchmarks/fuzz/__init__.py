"""Fuzzing of a party's ops, as a hostile analyst would: any arguments and expressions, tables and their neighbours."""
