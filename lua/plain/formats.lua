-- The formats of all bytes, and a few numbers that all files share. Numbers are whole and have the lowest byte first;
-- times are in ms. README.md draws all formats. Behind the numbers, `unpack` returns the place of the next byte.

local KEYS, ARGV = KEYS, ARGV -- globals, so dearer
local pack, unpack, sub, byte, rep = struct.pack, struct.unpack, string.sub, string.byte, string.rep

local VALUE_VERSION = 1
local MOST_UNITS = 9007199254740991 -- 2^53 - 1: no section uses more
local MOST_SECTIONS = 255 -- in a value
local A_SECOND, A_MINUTE = 1000, 60000 -- in ms
local FOR_EVER = 2 ^ 47 -- in ms; with the time added, fits into 6 bytes
local LAST = 2 ^ 48 - 1 -- in ms: the last time that fits into 6 bytes, and the end of a block without an end

local POLICY_AT = 17 -- in a part
local KIND = 2 ^ 44 -- a label's first number: this times the number of the kind, plus a number of the rule
local GONE = '' -- in `values`, of a key to be deleted
local RULES = '<I1I1I6I2' -- how many there are; for the fast path, a class, the mark of their labels, and a size
local LIMIT, LIMIT_SIZE = '<I7', 7
local LABEL, LABEL_SIZE = '<I6I6', 12 -- the kind and the first number of a rule, its second number
local BEHIND_LABEL = 4 -- bytes

local FRONT = '<I6I6I6I6I6' -- of a value: mark, since, due, due of the others, expires
local HEAD = '<I6I7' -- of a section: newest, base
local COUNT = '<I7' -- used
local BODY_SIZE = '<I4'

local BLOCK, BLOCK_SIZE = '<I6I1I1', 8 -- end, maker, version
local LEVEL, LEVEL_SIZE = '<I1I6I6', 13 -- of bans: number, the end of the last one, kept until
local TIME, TIME_SIZE = '<I6', 6 -- of a block, of a boundary of the calendar, or how long a ban lasts

local TIMES_ADMITTED = '<I4'
local USAGE = '<I7I6I6' -- for each rule: used, the end of the newest step, when the units fit
local FAILED, DONE, NOT_ASKED, BLOCKED = '\0', '\1', '\2', '\3' -- how the reply to an operation begins
local LONG = '\1' -- how the usage of a key begins
local WRONG_TYPE, UNREADABLE, OTHER_TIME = '\1', '\2', '\4' -- why an operation failed

-- Makes the operation fail, and no other of the call.
local function fail(reason)
  error({ reason = reason })
end
