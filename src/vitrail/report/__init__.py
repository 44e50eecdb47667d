"""The one kit for pages: the shell, tables and galleries, charts, and the report of a trained model.

A page is one HTML file that holds its style, script and images and asks for nothing from outside: it can be mailed,
printed, and opened years later. `page` has the shell, `charts` what is drawn on it, `content` the record that a report
is made from, and `model_report` makes it.
"""
