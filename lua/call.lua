-- A call: the version, the time, and the locals that the operations share.

local CALL_VERSION = 1
local TIME_FOLLOWS = 128 -- added to the version where the last argument is the time (tests)
local A_DAY = 86400000 -- in ms

local KEYS, ARGV = KEYS, ARGV -- globals, so dearer
local pack, unpack, spread, try = struct.pack, struct.unpack, unpack or table.unpack, redis.pcall
local sub, rep, format, type = string.sub, string.rep, string.format, type
local SHADOWS, ADD, TAKE, RENEW = 1, 2, 3, 7 -- actions, for the fast path; the return of slots is behind the renewal
local STEPS, BUCKETS, SLOTS, QUEUE = 1, 3, 4, 5 -- classes of policies, for the fast path; 2 is steps with calendar rules
local version = ARGV[1] and string.byte(ARGV[1])
local last_part = #ARGV -- KEYS[i] and ARGV[i] are a part: a key, and its task
local now -- in ms
local expiry_option, expiry_origin = 'PXAT', 0 -- the option of SET for the expiry, and the time that it counts from
local slack, expire = 0, 'PEXPIREAT'
if version == CALL_VERSION then
  local time = redis.call('TIME')
  local ms = time[2] / 1000
  now = time[1] * 1000 + (ms - ms % 1) -- whole ms, cheaper than by math.floor
elseif version == CALL_VERSION + TIME_FOLLOWS and #ARGV[last_part] == 6 then
  now, last_part = unpack('<I6', ARGV[last_part]), last_part - 1
  slack, expire = A_DAY, 'PEXPIRE' -- so that the server's clock ends no key during a test
  expiry_option, expiry_origin = 'PX', now - slack
else
  return redis.error_reply('CALLVERSION the call is of another version than the script')
end

-- For KEYS[i]: the value that was read; the value that the operation leaves to be written, GONE or nothing; its place in
-- the stored value, or nothing if it is the whole; and when the key expires, or nothing if the expiry stays.
local GONE = ''
-- Tables have room for eight keys: to grow is dear.
local stored, values = { nil, nil, nil, nil, nil, nil, nil, nil }, { nil, nil, nil, nil, nil, nil, nil, nil }
local offsets, expiries = { nil, nil, nil, nil, nil, nil, nil, nil }, { nil, nil, nil, nil, nil, nil, nil, nil }
local tasks = { a = nil, b = nil, c = nil, d = nil } -- by arguments, as those of a call are mostly alike; with room for four
-- The first part of an operation, its first key of blocks, and how many checks the operation before admitted.
local first, next_block, admitted = 1, last_part + 1, 0
local following = last_part > 0 and read_task(ARGV[1], tasks) -- of the operation that follows
local blocks_found -- how many keys of blocks exist: mostly none, which one command shows for the whole call
local replies, reply_count = { pack('<I6', now), nil, nil, nil, nil, nil, nil, nil, nil }, 1
local after_now -- the text of the time, as the bound of a range that begins later
local plain, slots, buckets, steps, usage_of, deny, queue, fronts -- made when they are needed
-- Numbers that the policy `prepared` and the time give, kept for the next check: most checks of a call have one policy.
local prepared, step, retention, places, window, start, current, number, gone, lag, ahead, release, ring_at, ring_end, gone_at
local fast_path = true -- false in tests of the plain script
