"""HTTP for all API families. The web server (`server`, `frames`) calls the `application`, whose `gate` checks
the key and its limits. Families decorate handlers with rows of the table (`routes`), which no request reaches
except through the gate. Each request ends once, with a line in the log and an event for the watch; those
without a response of their own run inside `served`."""
