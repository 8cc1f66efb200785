-- The fast path's renewals: slots of one key move to the step of now.

-- The queue of KEYS[i] after units were taken from the step that ends at `stop`, with its newest step as the last
-- entry; when that step ends; the base, what is used, and where the section and its room begin and end. Returns nothing
-- if the plain script has to.
local function without(policy, i, stop, units)
  local step, value = policy.steps[1], stored[i]
  local used, newest, first, base, width, live, behind, at, room_end = read_section(policy, i, 1)
  local is_there = used and first <= stop and stop <= newest
  if not is_there or width > 1 or used >= WRAP or policy.retentions[1] / step >= 4096 then return end
  local count, before, last = (behind - live) / ENTRY_SIZE, 0, newest
  if count == 0 then base = 0 end
  local k = last_below(value, live, 0, count + 1, first / step, (stop - first) / step)
  local entries = { sub(value, live, live + k * ENTRY_SIZE - 1) }
  if k > 0 then
    local number, total = unpack('<I2I2', value, live + (k - 1) * ENTRY_SIZE)
    before, last = (total - base) % WRAP, newest - (newest / step - number) % WRAP * step
  end
  for e = k + 1, count + 1 do
    local number, total = newest / step % WRAP, used
    if e <= count then
      number, total = unpack('<I2I2', value, live + (e - 1) * ENTRY_SIZE)
      total = (total - base) % WRAP
    end
    if e == k + 1 and (number ~= stop / step % WRAP or total - before < units) then return end
    if e > k + 1 or total - before > units then
      entries[#entries + 1], last = pack('<I2I2', number, (base + total - units) % WRAP), newest
    end
  end
  return table.concat(entries), last, base, used, at, room_end
end

-- Moves the slots of KEYS[i] to the step of now. Returns its reply, or nothing if the plain script has to.
local function renew(task, i)
  if fits(task, i, 0) == nil then return end -- false if more is in use than a limit that was lowered
  local policy, units, expires = task.policy, task.units, fronts[i][5]
  local step, retention, stop = policy.steps[1], policy.retentions[1], unpack('<I6', ARGV[i], #ARGV[i] - 5)
  local queue, last, base, used, at, room_end = without(policy, i, stop, units)
  if not queue then return end
  local newest, width = now - now % step + step, 1
  if used == units then
    base, width = 0, 0
  elseif last == newest then
    queue = sub(queue, 1, -ENTRY_SIZE - 1)
  elseif #queue == ENTRY_SIZE then -- the base begins with the first entry
    base, queue = 0, pack('<I2I2', last / step % WRAP, used - units)
  end
  local length, room, first = #queue, room_end - at - HEAD_SIZE, newest
  if length > room or room > 64 and length * 4 < room then return end
  if length > 0 then first = newest - (newest / step - unpack('<I2', queue)) % WRAP * step end
  local release = newest + retention
  if expires < release or release + 60000 < expires then
    expires = release + math.min(math.max(step, retention), 60000)
    expiries[i] = expires
  end
  local front = pack(policy.front_format, 1, used, math.min(newest, first + retention), newest - step, expires)
  local changed = front .. pack(HEAD, newest, first, base, length, room, width) .. queue
  values[i] = expiries[i] and changed .. sub(stored[i], #changed + 1) or changed
  return '\1\1\0\0\0\2' .. sub(front, 1, 8)
end
