-- The fast path's renewals: slots of one key move to the step of now.

-- The queue of KEYS[i] after units were taken from the step that ends at `stop`, with its newest step as the last
-- entry; the end of that newest step; the base, what is used, and the room. Returns nothing if the plain script has to.
local function without(policy, value, used, stop, units)
  local step, retention = policy.labels[1], policy.labels[2]
  local newest, first, base, width, live, behind, _, room
  used, newest, first, base, width, live, behind, _, room = read_section(value, 28, 0, used, step, retention)
  local is_there = used and first <= stop and stop <= newest
  if not is_there or width > 1 or used >= 2 ^ 16 or retention / step >= 4096 then return end
  local count, before, last = (behind - live) / 4, 0, newest
  if count == 0 then base = 0 end
  local k = last_below(value, live, 0, count + 1, first / step, (stop - first) / step)
  local entries = { sub(value, live, live + k * 4 - 1) }
  if k > 0 then
    local number, total = unpack('<I2I2', value, live + (k - 1) * 4)
    before, last = (total - base) % 2 ^ 16, newest - (newest / step - number) % 2 ^ 16 * step
  end
  for e = k + 1, count + 1 do
    local number, total = newest / step % 2 ^ 16, used
    if e <= count then
      number, total = unpack('<I2I2', value, live + (e - 1) * 4)
      total = (total - base) % 2 ^ 16
    end
    if e == k + 1 and (number ~= stop / step % 2 ^ 16 or total - before < units) then return end
    if e > k + 1 or total - before > units then
      entries[#entries + 1], last = pack('<I2I2', number, (base + total - units) % 2 ^ 16), newest
    end
  end
  return table.concat(entries), last, base, used, room
end

-- Moves the slots of KEYS[i] to the step of now. Returns the count of its rules and what each uses, or nothing if
-- the plain script has to.
local function renew(policy, i, value, front, units)
  local step, retention, expires = policy.labels[1], policy.labels[2], front[5]
  local queue, last, base, used, room = without(policy, value, front[2], unpack('<I6', ARGV[i], #ARGV[i] - 5), units)
  if not queue then return end
  local newest, width = now - now % step + step, 1
  if used == units then
    base, width = 0, 0
  elseif last == newest then
    queue = sub(queue, 1, -5)
  elseif #queue == 4 then -- the base begins with the first entry
    base, queue = 0, pack('<I2I2', last / step % 2 ^ 16, used - units)
  end
  local length, first, release = #queue, newest, newest + retention
  if length > room or room > 64 and length * 4 < room then return end
  if length > 0 then first = newest - (newest / step - unpack('<I2', queue)) % 2 ^ 16 * step end
  if expires < release or release + 60000 < expires then
    expires = release + math.min(math.max(step, retention), 60000)
    expiries[i] = expires
  end
  local changed = pack(policy.front_format, 1, used, math.min(newest, first + retention), newest - step, expires)
    .. pack('<I6I6I7I4I4I1', newest, first, base, length, room, width) .. queue
  values[i] = expiries[i] and changed .. sub(value, #changed + 1) or changed
  return sub(changed, 1, 8)
end

return settle, renew
