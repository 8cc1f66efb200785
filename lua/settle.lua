-- Settlements: units are added to the step that was charged, or taken from it, as far as it still counts.

local pack, unpack, sub, spread = struct.pack, struct.unpack, string.sub, unpack or table.unpack
local BUCKET = 140737488355328 -- as in layout.lua
local MOST_UNITS = 9007199254740991 -- 2^53 - 1: no section uses more

-- The functions of layout.lua, made when one is first needed: a settlement of the newest step mostly needs none.
local made
local function slow_path()
  made = made or seldom('slow_path')
  return made
end

-- Changes the newest step of a section. Returns whether more than `used` has changed: a step without units is dropped.
local function change_newest(section, units)
  local entry, size, wrap = seldom('entry_format', section.width)
  local before, total = #section.queue / size, section.base
  if before > 0 then total = select(2, unpack(entry, section.queue, #section.queue - size + 1)) end
  local own = section.used - (total - section.base) % wrap
  if own + units > 0 then
    section.used = section.used + units
    return false
  end
  slow_path().cut(section, before)
  return true
end

-- Makes the entries of a section so wide that they tell so many steps and units apart. Returns their format.
local function fit_entries(section, steps, units)
  if section.width == 0 then section.width = slow_path().least_width(section.step, section.hold) end
  local most = math.max(steps, units)
  local _, _, wrap = seldom('entry_format', section.width)
  if most >= wrap or section.base + units > MOST_UNITS then
    local newest = section.newest / section.step
    section.queue, section.width = slow_path().rewrite(section.queue, section.width, newest, section.base, most)
    section.base = 0
  end
  return seldom('entry_format', section.width)
end

-- Adds units in a new step after the newest of a section.
local function append(section, stop, units)
  if section.used == 0 then
    section.first = stop
  else
    local entry, _, wrap = fit_entries(section, (stop - section.first) / section.step, section.used)
    local number = section.newest / section.step
    section.queue = section.queue .. pack(entry, number % wrap, (section.base + section.used) % wrap)
  end
  section.newest, section.used = stop, section.used + units
end

-- Changes a step before the newest: the totals of all entries from it on. Returns whether anything has changed.
local function change_older(section, stop, units)
  local step, first, newest = section.step, section.first, section.newest
  local steps = (newest - math.min(first, stop)) / step
  local entry, size, wrap = fit_entries(section, steps, section.used + math.max(units, 0))
  local queue, total, before = section.queue, section.base, 0
  if stop > first then
    before = seldom('lower_bound', queue, 1, #queue + 1, section.width, false, first / step, (stop - first) / step)
  end
  local at = 1 + before * size
  if before > 0 then total = select(2, unpack(entry, queue, at - size)) end

  local stops, totals = {}, {} -- of the entries from there on
  for entry_at = at, #queue, size do
    local number, sum = unpack(entry, queue, entry_at)
    stops[#stops + 1], totals[#totals + 1] = newest - (newest / step - number) % wrap * step, sum
  end
  local own = stops[1] == stop and (totals[1] - total) % wrap or 0
  units = math.max(units, -own)
  if units == 0 then return false end
  if stops[1] ~= stop then
    table.insert(stops, 1, stop)
    table.insert(totals, 1, total)
  elseif own + units == 0 then
    table.remove(stops, 1)
    table.remove(totals, 1)
  end

  local entries = {}
  for i = 1, #stops do entries[i] = pack(entry, stops[i] / step % wrap, (totals[i] + units) % wrap) end
  if before == 0 then section.first = stops[1] or newest end
  section.queue, section.used = sub(queue, 1, at - 1) .. table.concat(entries), section.used + units
  return true
end

-- Adds units (takes them, if they are negative) to what is missing in a bucket: never so many that less than nothing
-- is missing, or too much. Returns true, since the value is always written anew.
local function change_bucket(section, units)
  local window = section.step - BUCKET
  local room = MOST_UNITS - MOST_UNITS % window - section.used
  units = math.min(units, (room - room % window) / window)
  section.used = section.used + math.max(units, -math.ceil(section.used / window)) * window
  if section.used <= 0 then slow_path().cut(section, 0) end
  return true
end

-- Adds units (takes them, if they are negative) to the step of a section that ends at `stop`, if it still counts, and
-- never so many that it has less than none or the section uses too many. Returns whether more than `used` has changed.
local function change(now, section, stop, units)
  if section.step > BUCKET then return change_bucket(section, units) end
  local time = math.max(now, section.newest - section.step)
  if stop + section.hold <= time then return false end
  if stop > now + section.step and stop > slow_path().last_believed(now, section.step, section.hold) then
    return false
  end
  units = math.min(units, MOST_UNITS - section.used)
  if stop < section.newest then return change_older(section, stop, units) end
  if stop == section.newest then return change_newest(section, units) end
  if units <= 0 then return false end
  append(section, stop, units)
  return true
end

-- Puts changed sections back into a state.
-- changed  tables with the place of their head, `at`, and of the head that follows, `limit`; the last of them first
local function put_back(state, changed)
  local layout, value, count = slow_path(), state[1], state[4]
  local since, expires = state[count * 2 + 5], state[count * 2 + 6]
  for _, section in ipairs(changed) do
    value = sub(value, 1, section.at - 1) .. layout.section_bytes(section) .. sub(value, section.limit)
    state[count + section.k + 4] = layout.due_of(section)
    since, expires = math.max(since, layout.start_of(section)), math.max(expires, layout.release_of(section))
  end
  state[3] = (state[3] or expires > state[count * 2 + 6]) and expires or true
  state[count * 2 + 5], state[count * 2 + 6] = since, expires
  local front = pack(layout.front_format(count), spread(state, 4, count * 2 + 6))
  state[2] = front .. sub(value, #front + 1)
end

-- Settles one key. The ends of the steps that were charged stand where a check has limits, but for buckets.
-- Returns what is to be replied of the key.
local function settle_key(now, task, state)
  local value, sections, reply = state[1], state[4], '\1'
  local at, left, has_changed, changed = 14 + sections * 14, 0, false, {}
  for k = 1, task[6] do
    local section, live, behind = { k = k, at = at }, nil, nil
    section.used, section.newest, section.first, section.base, section.width, live, behind, section.limit,
      section.step, section.hold = read_section(now, value, at, task[2], k, state[k + 4], state[sections + k + 4])
    if section.limit > #value then error('a queue is longer than its value') end
    section.queue, section.room = sub(value, live, behind - 1), section.limit - at - 28
    local used = section.used
    local must_be_put_back = change(now, section, task[k + 6], task[1])
    -- What is released leaves the value with each write: it must not count again when the clock steps back.
    if must_be_put_back or used ~= state[k + 4] then table.insert(changed, 1, section) end
    has_changed, left, state[k + 4] = has_changed or section.used ~= used, left + section.used, section.used
    reply, at = reply .. pack('<I7I6I6', section.used, section.newest, 0), section.limit
  end
  for k = task[6] + 1, sections do left = left + state[k + 4] end

  if has_changed and left == 0 then
    state.is_gone = true
  elseif has_changed and (#changed > 0 or state[3]) then
    put_back(state, changed)
  elseif has_changed then
    state[2] = pack(task[4], spread(state, 4, task[6] + 4))
  end
  return reply
end

-- Settles the charges of one check.
-- tasks   of the keys of these charges
-- states  of the keys; changed
-- Returns what is to be replied.
local function settle(now, tasks, states)
  local reply = '\1'
  for i, task in ipairs(tasks) do
    if not states[i][1] and task[1] > 0 then states[i] = slow_path().relayout(now, nil, task) end
    if states[i][1] then
      reply = reply .. settle_key(now, task, states[i])
    else
      reply = reply .. '\1' .. string.rep('\0', task[6] * 19)
    end
  end
  return reply
end
