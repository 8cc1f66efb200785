-- Blocks: a key holds the end of the block, the maker and a version; then details, which the script only writes.

-- The block that KEYS[i] holds, without details, and when the block ends; nil and 0 if there is none.
local function block_of(i)
  local held = get(i)
  if not held then return nil, 0 end
  if #held ~= BLOCK_SIZE and #held < BLOCK_SIZE + 10 then fail(UNREADABLE) end -- without details, or with
  local stop, _, version = unpack(BLOCK, held)
  if version ~= VALUE_VERSION then fail(OTHER_VERSION) end
  return sub(held, 1, BLOCK_SIZE), stop
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

-- Blocks an identity until a time, unless it is blocked for longer. With a second key, for strikes, blocks only if the
-- strikes reach their limit, and deletes them.
local function block_until(parts, stop)
  local part, strikes = parts[1], parts[2]
  if strikes then
    read(strikes)
    if strikes.sections[1].units < strikes.rules[1].limit then return NOT_ASKED end
    values[strikes.i] = GONE
  end
  local block, held_until = block_of(part.i)
  if held_until > now and held_until >= stop then return DONE .. block end
  local details = sub(ARGV[part.i], POLICY_AT + 1) -- behind the number of rules, 0 for a block
  block = pack('<I6', stop) .. sub(details, 1, 2)
  if stop > now then values[part.i], expiries[part.i] = block .. pack('<I6', now) .. sub(details, 3), stop end
  return DONE .. block
end
