-- How the entries of a queue are written.
-- width  as in a section's head; 0 is a queue that has had no entries
-- Returns the format of an entry, its size in bytes, and what both its numbers are counted modulo.
local width = ...
if width < 2 then return '<I2I2', 4, 65536 end
if width == 2 then return '<I4I4', 8, 4294967296 end
if width == 3 then return '<I7I7', 14, 9007199254740992 end
error('no such width')
