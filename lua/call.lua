-- The beginning of every call: the version, and the time.

local CALL_VERSION = 1
local TIME_FOLLOWS = 128 -- added to the version where the last argument is the time (tests)
local JOINED = 8 -- added to the action of a part that belongs to the operation of the part before it
local KIND = 2 ^ 44 -- the first number of a label is the number of its kind times this, plus a number of the rule
local A_DAY = 86400000 -- in ms

local KEYS, ARGV = KEYS, ARGV -- globals, so dearer
local pack, unpack, spread, sub, byte = struct.pack, struct.unpack, unpack or table.unpack, string.sub, string.byte
local version = ARGV[1] and byte(ARGV[1])
local last_part = #ARGV -- KEYS[i] and ARGV[i] are a part: a key, and what to do with it
local now -- in ms
local expiry_option, expiry_origin = 'PXAT', 0 -- how SET gives a key its expiry, and what that is counted from
if version == CALL_VERSION then
  local time = redis.call('TIME')
  local ms = time[2] / 1000
  now = time[1] * 1000 + (ms - ms % 1) -- whole ms, cheaper than by math.floor
elseif version == CALL_VERSION + TIME_FOLLOWS and #ARGV[last_part] == 6 then
  now, last_part = unpack('<I6', ARGV[last_part]), last_part - 1
  expiry_option, expiry_origin = 'PX', now - A_DAY -- a day more, so that the server's clock ends no key during a test
else
  return redis.error_reply('CALLVERSION the call is of another version than the script')
end

-- For KEYS[i]: the value that was read; the value that the operation leaves to be written, GONE or nothing; and when
-- the key expires.
local GONE = ''
local stored, values, expiries = {}, {}, {}
