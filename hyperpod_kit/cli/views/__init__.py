"""What commands print: tables, pages and rows, apart from what they do."""
