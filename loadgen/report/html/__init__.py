"""A run as one HTML file that works offline, on screen and on paper.

`document` assembles it, `sections` holds the tables, `page` writes the tags around texts, `charts` and `timeline` draw
the figures. `report.css` and `report.js` are embedded.
"""
