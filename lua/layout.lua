-- The slow path, which is made anew each time that it is needed: values that are not laid out as their caller expects
-- them, or were written while the clock showed a later time.

local pack, unpack, sub, rep = struct.pack, struct.unpack, string.sub, string.rep

local BUCKET = 140737488355328 -- 2^47: in a label more than this stands for a bucket
local FOR_EVER = 140737488355328 -- in ms, so that it fits into 6 bytes with the time added

-- newest, first, base, length and room of the queue, width
local HEAD = '<I6I6I7I4I4I1'

-- The format of the front of a value of so many sections.
local function front_format(sections)
  local each = rep('I7', sections)
  return '<I1' .. each .. each .. 'I6I6'
end

-- The end of the last step that is believed, in ms: one further ahead was charged while the clock was wrong.
local function last_believed(now, step, hold)
  return now + step + step + math.max(step, hold)
end

-- The start of the newest step of a section; the time of a bucket.
local function start_of(section)
  return section.step > BUCKET and section.newest or section.newest - section.step
end

-- When nothing in a section counts any more.
local function release_of(section)
  local hold = section.hold
  if section.step > BUCKET then hold = math.min(math.ceil(section.used / hold), FOR_EVER) end
  return section.newest + hold
end

-- When more than what is used changes in a section; the time of a bucket.
local function due_of(section)
  return section.step > BUCKET and section.newest or math.min(section.newest, section.first + section.hold)
end

-- The narrowest entries that tell the steps of a rule apart; step and hold in ms.
local function least_width(step, hold)
  return hold / step < 4096 and 1 or hold / step < 4294967290 and 2 or 3
end

-- Writes a queue anew, with totals that begin at 0.
-- queue   its entries as they stand
-- width   of these
-- newest  the number (end / step) of a step that is not before any of theirs
-- base    the total before the oldest
-- most    the units, or steps, that an entry must be able to hold
-- Returns the new queue, and the width of its entries.
local function rewrite(queue, width, newest, base, most)
  local entry, size, wrap = seldom('entry_format', width)
  local wider, _, wider_wrap = entry, size, wrap
  while most >= wider_wrap do
    width = width + 1
    wider, _, wider_wrap = seldom('entry_format', width)
  end
  local entries = {}
  for at = 1, #queue, size do
    local number, total = unpack(entry, queue, at)
    number = newest - (newest - number) % wrap
    entries[#entries + 1] = pack(wider, number % wider_wrap, (total - base) % wrap)
  end
  return table.concat(entries), width
end

-- Keeps only the first entries of a section; the last of them becomes its newest step.
-- section  a table, see `parse`; changed
-- kept     how many; 0 leaves a section in which nothing counts
local function cut(section, kept)
  if kept == 0 then
    section.used, section.newest, section.first, section.base, section.width, section.queue = 0, 0, 0, 0, 0, ''
    return
  end
  local entry, size, wrap = seldom('entry_format', section.width)
  local at, step = 1 + (kept - 1) * size, section.step
  local number, total = unpack(entry, section.queue, at)
  section.newest = section.newest - (section.newest / step - number) % wrap * step
  section.used, section.queue = (total - section.base) % wrap, sub(section.queue, 1, at - 1)
end

-- Drops the steps of a section that are not believed, or all that is missing in a bucket.
-- limit  of the caller, if the section is one of its own; those of others are not known, nor how long their buckets
--        take to be full
local function trim(now, section, limit)
  local step, first, queue = section.step, section.first, section.queue
  if step > BUCKET then
    if limit and section.newest - now > limit * (step - BUCKET) / section.hold then cut(section, 0) end
    return
  end
  local last = last_believed(now, step, section.hold)
  if section.used == 0 or section.newest <= last then return end
  local bound = (last - last % step - first) / step + 1
  local kept = 0
  if bound > 0 then
    kept = seldom('lower_bound', queue, 1, #queue + 1, section.width, false, first / step, bound)
  end
  cut(section, kept)
end

-- Reads all sections of a value: tables of `used`, `step`, `hold`, the numbers of the head, `queue` and `label`.
local function parse(value)
  if string.byte(value, -1) ~= 1 then error('a value of another version') end
  local count, sections = string.byte(value), {}
  local front = { unpack(front_format(count), value) }
  local at, labels = 14 + count * 14, #value - count * 12
  assert(count > 0 and labels >= at, 'a value of no sections')
  for k = 1, count do
    local label = labels + k * 12 - 12
    local section, length = { used = front[k + 1], label = sub(value, label, label + 11) }, nil
    section.step, section.hold = unpack('<I6I6', section.label)
    section.newest, section.first, section.base, length, section.room, section.width = unpack(HEAD, value, at)
    section.queue = sub(value, at + 28, at + 27 + length)
    if section.step > BUCKET then section.newest = front[count + 1 + k] end
    sections[k], at = section, at + 28 + section.room
  end
  assert(at == labels, 'a value of another length')
  return sections
end

-- The caller's sections in its order, empty where they are new or nothing in them counts; then those of others that
-- still count.
local function arrange(now, stored, task)
  local found, sections, labels, limits = {}, {}, task[2], {}
  for k = 1, task[6] do limits[sub(labels, k * 12 - 11, k * 12)] = task[k + 6] end
  for _, section in ipairs(stored) do
    trim(now, section, limits[section.label])
    if section.used > 0 and release_of(section) > now then found[section.label] = section end
  end
  for at = 1, #labels - 1, 12 do
    local section = found[sub(labels, at, at + 11)]
    if not section then
      section = { label = sub(labels, at, at + 11), room = 0 }
      section.step, section.hold = unpack('<I6I6', section.label)
      cut(section, 0)
    end
    sections[#sections + 1], found[section.label] = section, nil
  end
  for _, other in ipairs(stored) do
    if found[other.label] == other and #sections < 255 then sections[#sections + 1] = other end
  end
  return sections
end

-- A section as it stands in a value: its head and the room of its queue.
local function section_bytes(section)
  local length = #section.queue
  local room = math.max(section.room, length)
  local newest = section.step > BUCKET and 0 or section.newest
  local head = pack(HEAD, newest, section.first, section.base, length, room, section.width)
  return head .. section.queue .. rep('\0', room - length)
end

-- A value of these sections, which expires at the last release.
local function compose(now, sections)
  local used, dues, bodies, labels, since, expires = {}, {}, {}, {}, 0, 0
  for k, section in ipairs(sections) do
    local due = 0 -- nothing counts, or time stands still
    if section.used > 0 then
      local start = start_of(section)
      since, expires = math.max(since, start), math.max(expires, release_of(section))
      if start <= now or section.step > BUCKET then due = due_of(section) end
    end
    used[k], dues[k] = pack('<I7', section.used), pack('<I7', due)
    bodies[k], labels[k] = section_bytes(section), section.label
  end
  return pack('<I1', #sections) .. table.concat(used) .. table.concat(dues) .. pack('<I6I6', since, expires)
    .. table.concat(bodies) .. table.concat(labels) .. '\1'
end

-- Lays a value out as its caller expects it. Steps that are not believed are dropped.
-- now    in ms
-- value  what is stored; nil or false if nothing is
-- task   of the caller
-- Returns a state. Raises an error if the value cannot be read.
local function relayout(now, value, task)
  value = compose(now, arrange(now, value and parse(value) or {}, task))
  return { value, false, true, unpack(front_format(string.byte(value)), value) }
end

-- The state of a key as it will be once state[2] is written.
local function after(state)
  local value = state[2]
  if not state[3] then value = value .. sub(state[1], #value + 1) end
  return { value, false, false, unpack(front_format(string.byte(value)), value) }
end
