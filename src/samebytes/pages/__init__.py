"""The pages of the article: a module each, with the blocks that the page's cells call, as HTML."""
