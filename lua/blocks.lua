-- Blocks: what a key named `!block` holds. Only its first 8 bytes are read; the details behind them are written.

local pack, unpack, sub = struct.pack, struct.unpack, string.sub
local VERSION = 1

-- When a block ends, in ms, and who made it.
local function read_block(held)
  if #held ~= 8 and #held < 18 then error('not a block') end -- without details, or with
  local stop, by, version = unpack('<I6I1I1', held)
  if version ~= VERSION then error('a value of another version') end
  return stop, by
end

-- The later of two blocks, as it is replied: which of the operation's blocks it is, and what its key holds.
-- block  the one that was found before, or nil
-- place  which of the operation's blocks this is, from 0
-- held   what its key holds
-- Returns nil if neither holds.
local function later_block(now, block, place, held)
  local stop = read_block(held)
  if stop <= now or block and read_block(sub(block, 2)) >= stop then return block end
  return pack('<I1', place) .. sub(held, 1, 8)
end

-- Blocks an identity until a time or for a time, unless it is blocked for longer. A ban is about two keys: it is
-- made only if the strikes of the second reach its limit, and forgets them.
-- first   the number of the operation's first key
-- tasks   of its keys
-- states  of its keys; get what is to be written
-- Returns the reply: the block that holds, or '\2' if the strikes are too few.
local function block(now, first, tasks, states)
  local state, strikes = states[1], states[2]
  local action, _, stop, _, _, by = unpack('<I1I4I7I1I1I1', ARGV[first], 2)
  if strikes then
    local task = tasks[2]
    local stored = seldom('slow_path').relayout(now, redis.pcall('GET', KEYS[first + 1]), task)
    local used = read_section(now, stored[1], 14 + stored[4] * 14, task[2], 1, stored[5], stored[stored[4] + 5])
    if used < task[7] then return '\2' end
    strikes.is_gone = true
  end
  if action == 5 then stop = math.min(now + stop, 281474976710655) end -- 2^48 - 1 is for ever
  local held = redis.pcall('GET', KEYS[first])
  if held then
    local held_until = read_block(held)
    if held_until > now and held_until >= stop then return '\1' .. sub(held, 1, 8) end
  end
  held = pack('<I6I1I1', stop, by, VERSION)
  if stop > now then state[2], state[3] = held .. pack('<I6', now) .. sub(ARGV[first], 18), stop end
  return '\1' .. held
end
