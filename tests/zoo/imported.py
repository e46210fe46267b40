"""What the ranks of a layout are forked with: importing this imports all of it."""

from tests.zoo.packages import import_all

import_all()
