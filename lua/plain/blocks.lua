-- Blocks: a key holds the end of the block, the maker and a version; then details, which the script only writes, and the
-- level of the bans that grow, which may be kept for longer than the block lasts.

-- The block that KEYS[i] holds, without details, when the block ends, and the value; nil, 0 and '' if there is none.
local function block_of(i)
  local held = get(i)
  if not held then return nil, 0, '' end
  local stop, _, version = unpack(BLOCK, held)
  if #held ~= BLOCK_SIZE and #held < BLOCK_SIZE + 10 -- without details, or with
    or version ~= VALUE_VERSION then fail(UNREADABLE) end
  return sub(held, 1, BLOCK_SIZE), stop, held
end

-- The reply to a check with `count` keys of blocks, from the first on: nothing if no block holds. The block that ends
-- last counts.
local function blocked_by(first, count)
  local latest, reply = now, nil
  for place = 0, count - 1 do
    local block, stop = block_of(first + place)
    if stop > latest then latest, reply = stop, BLOCKED .. string.char(place) .. block end
  end
  return reply
end

-- The level in the value of a block: its number, the end of its last ban, and until when it is kept; 0 if there is none.
local function level_of(held)
  local at = BLOCK_SIZE + 7 -- behind the time of the block
  for _ = 1, 4 do at = at + 1 + (byte(held, at) or 0) end -- the texts
  if #held ~= at + LEVEL_SIZE - 1 then return 0, 0, 0 end
  local level, ended, kept = unpack(LEVEL, held, at)
  if kept <= now or level == 0 then return 0, 0, 0 end
  return level, ended, kept
end

-- Blocks an identity until a time, unless it is blocked for longer. With a second key, for strikes, blocks only if the
-- strikes reach their limit, and deletes them unless a further ban needs them; a ban that changes no block is not made. A
-- ban that grows has several times, and lasts for that of its level: the block until `stop` would be the first.
local function block_until(parts, stop)
  local part, strikes = parts[1], parts[2]
  if strikes then
    read(strikes)
    if strikes.sections[1].units < strikes.rules[1].limit then return NOT_ASKED end
    if tasks[ARGV[strikes.i]].count == 0 then values[strikes.i] = GONE end
  end
  local block, held_until, held = block_of(part.i)
  local level, ended, kept = level_of(held)
  local arg, times_at = ARGV[part.i], POLICY_AT + 2 -- behind the number of rules, 0 for a block, and that of times
  local times = byte(arg, times_at - 1)
  if times > 0 then
    local begins = math.max(stop - unpack(TIME, arg, times_at), 0)
    if begins >= ended then level = math.min(level + 1, 255) end -- else both are for the same denials
    local time = unpack(TIME, arg, times_at + (math.min(level, times) - 1) * TIME_SIZE)
    stop = math.min(begins + time, LAST)
    ended, kept = stop, math.min(stop + time, LAST)
  end
  if held_until > now and held_until >= stop then return strikes and NOT_ASKED or DONE .. block end
  local details = sub(arg, times_at + times * TIME_SIZE)
  block = pack(TIME, stop) .. sub(details, 1, 2)
  if stop <= now then return strikes and NOT_ASKED or DONE .. block end
  local value = block .. pack(TIME, now) .. sub(details, 3)
  if level > 0 then value = value .. pack(LEVEL, level, ended, kept) end
  values[part.i], expiries[part.i] = value, math.max(stop, kept)
  return DONE .. block
end
