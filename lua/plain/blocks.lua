-- Blocks: a key holds when the block ends, who made it and a version; then details, which are only written here.

-- When a block ends.
local function end_of_block(held)
  if #held ~= BLOCK_SIZE and #held < BLOCK_SIZE + 10 then fail(UNREADABLE) end -- without details, or with
  local stop, _, version = unpack(BLOCK, held)
  if version ~= VALUE_VERSION then fail(OTHER_VERSION) end
  return stop
end

-- The reply to a check whose identities have so many keys of blocks, from the first on: nothing if none is blocked. The
-- block that ends last counts.
local function blocked_by(first, count)
  local latest, reply = now, nil
  for place = 0, count - 1 do
    local held = get(first + place)
    local stop = held and end_of_block(held) or 0
    if stop > latest then latest, reply = stop, BLOCKED .. string.char(place) .. sub(held, 1, BLOCK_SIZE) end
  end
  return reply
end

-- Blocks an identity until a time, unless it is blocked for longer. A second key holds strikes: then only if they reach
-- their limit, and they are forgotten.
local function block_until(parts, stop)
  local part, strikes = parts[1], parts[2]
  if strikes then
    local sections = read(strikes.i, strikes.rules)
    if sections[1].units < strikes.rules[1].limit then return NOT_ASKED end
    values[strikes.i] = GONE
  end
  local held = get(part.i)
  local held_until = held and end_of_block(held) or 0
  if held_until > now and held_until >= stop then return DONE .. sub(held, 1, BLOCK_SIZE) end
  local block = pack('<I6', stop) .. sub(part.block, 1, 2)
  if stop > now then values[part.i], expiries[part.i] = block .. pack('<I6', now) .. sub(part.block, 3), stop end
  return DONE .. block
end
