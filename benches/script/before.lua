local is_writing = false
local function execute(...)
-- Reads what is stored for one rule.
--
-- Each function of the script is made anew by every call, and what it closes over costs more: so those that all calls
-- need are few, take what they need as arguments, and give several values back where a table would read better.

local seldom -- does what few calls need, by its name: README.md says in which file

-- Reads a section, without the steps that are released.
-- now        in ms
-- value, at  the value, and where in it the section's head begins
-- labels, k  the labels of the caller's rules, and which rule it is
-- used, due  the section's numbers in the front of the value
-- Returns the units that count; the ends of the newest and the oldest step that count, 0 and 0 if none does; the total
-- before the oldest; the width of entries; where the entries that count begin and end; where their room ends; step and
-- hold in ms. Of a bucket: what is missing, in units * ms, and the time at which it is; the rest as of a section in
-- which nothing counts, step and hold as its label has them.
local function read_section(now, value, at, labels, k, used, due)
  local unpack = struct.unpack
  local step, hold = unpack('<I6I6', labels, k * 12 - 11)
  local newest, first, base, length, room, width = unpack('<I6I6I7I4I4I1', value, at)
  local live = at + 28
  local behind, limit, time = live + length, live + room, now
  if newest - step > now then time = newest - step end -- the clock stepped back: time stands still until it catches up
  if newest == 0 or newest + hold <= time then -- the head is empty, or all is released
    if step < 140737488355328 then return 0, 0, 0, 0, 0, behind, behind, limit, step, hold end
    -- A bucket: `step` is 2^47 + its window, `hold` its refill.
    if now > due then
      -- Divided, since the product could be too large for a number.
      used = now - due < used / hold and used - (now - due) * hold or 0
      due = now
    end
    return used, due, 0, 0, 0, live, live, limit, step, hold
  end

  if first + hold <= time then
    local entry, size, wrap = '<I2I2', 4, 65536
    if width > 1 then entry, size, wrap = seldom('entry_format', width) end
    local number, oldest = newest / step, first / step
    local kept = (newest + hold - time) / step -- a step that is at least so many steps before the newest is released
    -- Read half an entry further on: the total of one entry, and the step of the next.
    local gone, total, following = 1, unpack(entry, value, live + size / 2)
    while gone * size < length and (number - following) % wrap >= kept do
      gone = gone + 1
      if gone < 4 then
        total, following = unpack(entry, value, live + gone * size - size / 2)
      else -- many, or all
        local bound = number - oldest - kept
        gone = seldom('lower_bound', value, live, behind, width, false, oldest, bound - bound % 1 + 1)
        total, following = unpack(entry, value, live + gone * size - size / 2)
        break
      end
    end
    live, used, base = live + gone * size, used - (total - base) % wrap, total
    first = live < behind and newest - (number - following) % wrap * step or newest
  end
  return used, newest, first, base, width, live, behind, limit, step, hold
end
-- Pass 2 of a key that is charged and where something counts. Nothing is written to the server here.
--
-- A *task* is what an argument asks to be done with a key, an array, since names would cost more: at [1] the units,
-- below 0 where a settlement takes them; at [2] the labels of the rules and the version, as they stand at the end of a
-- value; three formats, at [3] that of the front of a value, at [4] that of what changes in it with each charge, at [5]
-- that of the reply to a call that charges one key; at [6] how many rules, then their limits, or in a settlement the
-- ends of the charged steps (of a bucket, its limit); then, if all rules are buckets, step and hold of each. A number
-- that nobody needs stands last, which `struct.unpack` returns: so [rules + 8] is nil unless all rules are buckets.
--
-- A *state* is what a key holds, an array, too: at [1] the value, false where nothing counts; at [2] what is to be
-- written, false until pass 2; at [3] whether the value has to be written whole, as nothing counts or it was laid out
-- anew, and from pass 2 on how: false if [2] is the first bytes of the value, true if it is all of it, or when the key
-- shall then expire; from [4] on the numbers of the value's front: how many sections, what each uses, when each is due,
-- since and expires. `is_gone` if the key is to be deleted.

-- Pass 2: charges a key, and brings those sections up to date that are due.
-- now     in ms
-- task    what is asked
-- state   of the key; changed
-- units   above 0
-- struct  the library; `sub` and `spread`: `string.sub` and `table.unpack`. To look them up once more would cost more
-- Returns whether the clock has stepped back: the units are then in a step that begins later than `now`.
local function charge(now, task, state, units, struct, sub, spread)
  local pack, rules, sections, is_whole = struct.pack, task[6], state[4], state[3]

  -- Buckets alone: pass 1 has put in the state what is missing now, and the time.
  if task[rules + 8] and not is_whole then
    local label, expires, release, window = rules + 7, state[rules * 2 + 6], 0, 0
    for k = 5, rules + 4 do
      local per_unit, refill = task[label] - 140737488355328, task[label + 1]
      local missing = state[k] + units * per_unit
      state[k], label = missing, label + 2
      if now + missing / refill >= expires then -- else it is full before the key expires
        local full = missing / refill + 1 -- rounded up, below
        full = now + (full < 140737488355328 and full - full % 1 or 140737488355328)
        if full > release then release, window = full, task[k + 2] * per_unit / refill end
      end
    end
    if release <= expires then
      state[2] = pack(task[4], spread(state, 4, rules * 2 + 4))
    else
      expires = release + (window > 60000 and 60000 or window - window % 1) -- as below
      state[3], state[rules * 2 + 6] = expires, expires
      state[2] = pack(task[3], spread(state, 4, rules * 2 + 6)) .. sub(state[1], rules * 14 + 14)
    end
    return false
  end

  local due_from, dues = 1, sections + 4
  if not is_whole then
    while due_from <= rules and now < state[dues + due_from] do
      state[due_from + 4] = state[due_from + 4] + units
      due_from = due_from + 1
    end
    if due_from > rules then -- nothing is due: only what is used changes
      state[2] = pack(task[4], spread(state, 4, rules + 4))
      return false
    end
  end

  local unpack, value, labels = struct.unpack, state[1], task[2]
  local since, expires = state[sections * 2 + 5], state[sections * 2 + 6]
  local latest = since > now and math.huge or now -- while time stands still, all are due
  local release, window = expires, 0
  local at, reached = 14 + sections * 14, 1 -- the section whose head begins there
  -- What is to follow the front, joined as late as can be, since each string that is made is hashed: `changed` holds
  -- the sections before the last one that changed; head, queue and tail are that one; `copied` is the first byte of the
  -- old value that follows.
  local changed, head, queue, tail, copied = '', '', '', '', at
  for k = due_from, rules do
    local used, due = state[k + 4], state[dues + k]
    if due <= latest then
      while reached < k do
        reached, at = reached + 1, at + 28 + unpack('<I4', value, at + 23)
      end
      local newest, first, base, width, live, behind, limit, step, hold
      used, newest, first, base, width, live, behind, limit, step, hold =
        read_section(now, value, at, labels, k, used, due)

      local rewritten, closed = nil, '' -- the queue, written anew; the entry of the step that was the newest
      if step > 140737488355328 then -- a bucket: what is missing counts until it is full
        local per_unit = step - 140737488355328
        local missing = used + units * per_unit
        used = missing - units -- which are added below
        local full = missing / hold + 1
        full = newest + (full < 140737488355328 and full - full % 1 or 140737488355328)
        if full > release then release, window = full, task[k + 6] * per_unit / hold end
        if newest > since then since = newest end
        due, newest, step, hold = newest, 0, 0, 0 -- so that what follows leaves since, release and due as they are
      elseif used == 0 then
        newest = now - now % step + step
        first = newest
      elseif now >= newest then -- else it is open still, or time stands still
        if width == 0 then -- its first entry
          width = hold / step < 4096 and 1 or seldom('slow_path').least_width(step, hold)
        end
        local entry, _, wrap = '<I2I2', 4, 65536
        if width > 1 then entry, _, wrap = seldom('entry_format', width) end
        if used >= wrap or base + used > 9007199254740991 then
          rewritten, width = seldom('slow_path').rewrite(sub(value, live, behind - 1), width, newest / step, base, used)
          entry, _, wrap = seldom('entry_format', width)
          base, live = 0, behind
        end
        closed = pack(entry, newest / step % wrap, (base + used) % wrap)
        if rewritten then closed = rewritten .. closed end
        newest = now - now % step + step
      end

      local length, room = behind - live + #closed, limit - at - 28
      if length > room then
        room = room > 16 and room * 2 or 32
        if length > room then room = length end
      elseif room > 64 and length * 4 < room then
        room = length > 16 and length * 2 or 32
      end
      if head ~= '' or copied < at then changed = changed .. head .. queue .. tail .. sub(value, copied, at - 1) end
      head = pack('<I6I6I7I4I4I1', newest, first, base, length, room, width)
      queue, tail = sub(value, live, behind - 1), closed
      copied = at + 28 + length
      if at + 28 + room ~= limit then
        if limit > #value then error('a queue is longer than its value') end
        tail, copied, is_whole = closed .. string.rep('\0', room - length), limit, true
      end

      if newest - step > since then since = newest - step end
      if newest + hold > release then release, window = newest + hold, hold > 0 and hold or step end
      if step > 0 then due = first + hold < newest and first + hold or newest end
      state[dues + k] = due
      reached, at = k + 1, limit
    end
    state[k + 4] = used + units
  end

  if release > expires then
    -- A window later than must be, at most a minute: else each new step would move the expiry, and a SET is dearer than
    -- a SETRANGE.
    expires = release + (window > 60000 and 60000 or window - window % 1)
    state[3] = expires
  else
    state[3] = state[3] and expires or is_whole -- the expiry is written again only for a value that was laid out anew
  end
  state[sections * 2 + 5], state[sections * 2 + 6] = since, expires
  local format = task[3]
  if sections ~= rules then format = seldom('slow_path').front_format(sections) end
  local front = pack(format, spread(state, 4, sections * 2 + 6))
  if state[3] then
    state[2] = front .. changed .. head .. queue .. tail .. sub(value, copied)
  else
    state[2] = front .. changed .. head .. queue .. tail
  end
  return since > now
end
function seldom(what, ...)
if what == 'explain' then
-- Pass 2: what is to be replied of one key: for each rule what is used, the end of the newest step, and when the units
-- fit; of a bucket what is missing, in units * ms, and the time.
-- now    in ms
-- task   what is asked
-- state  of the key
-- units  that ought to fit; 0 if only what counts is asked for
-- count  how many checks were admitted, if nothing else is replied of the call: then the reply is whole
local now, task, state, units, count = ...
local value, sections = state[1], state[4]
local labels, rules = task[2], task[6]
local pack, unpack = struct.pack, struct.unpack
if not value then
  return (count and pack('<I6I1I4', now, 1, count) or '') .. '\1' .. string.rep('\0', rules * 19)
end
local reply, at = nil, 14 + sections * 14
for k = 1, rules do
  local limit, used, due, newest, fits_at = task[k + 6], state[k + 4], state[sections + k + 4], nil, 0
  if due <= now or used - limit + units > 0 then -- added in this order, so that nothing exceeds 2^53
    local first, base, width, live, behind, step, hold, _
    used, newest, first, base, width, live, behind, _, step, hold = read_section(now, value, at, labels, k, used, due)
    local excess = used - limit + units -- what has to be released
    if excess <= 0 or units > limit or step > 140737488355328 then
      fits_at = 0
    elseif excess == 1 then
      fits_at = first + hold
    else
      local entry, size, wrap = seldom('entry_format', width)
      local last = live + seldom('lower_bound', value, live, behind, width, true, base, excess) * size
      local after = last < behind and (newest / step - unpack(entry, value, last)) % wrap * step or 0
      fits_at = newest - after + hold
    end
  else
    newest = unpack('<I6', value, at)
    if newest == 0 then newest = due end -- a bucket in which time stands still
  end
  if k > 1 then
    reply = reply .. pack('<I7I6I6', used, newest, fits_at)
  elseif count then -- at once, since each string that is made is dear
    reply = pack('<I6I1I4I1I7I6I6', now, 1, count, 1, used, newest, fits_at)
  else
    reply = pack('<I1I7I6I6', 1, used, newest, fits_at)
  end
  if k < rules then at = at + 28 + unpack('<I4', value, at + 23) end
end
return reply
elseif what == 'create' then
-- Pass 2: charges a key where nothing counts.
-- now    in ms
-- task   what is asked
-- state  of the key
-- units  above 0
local now, task, state, units = ...
local pack, unpack, spread = struct.pack, struct.unpack, unpack or table.unpack
local labels, rules = task[2], task[6]
local since, release, window, heads = 0, 0, 0, ''
state[4] = rules
for k = 1, rules do
  local step, hold = unpack('<I6I6', labels, k * 12 - 11)
  local used, start, newest, due = units, now, 0, now
  if step > 140737488355328 then
    used = units * (step - 140737488355328)
    hold = math.min(math.ceil(used / hold), 140737488355328)
  else
    start = now - now % step
    newest = start + step
    due = newest
  end
  if start > since then since = start end
  if due + hold > release then release, window = due + hold, hold > 0 and hold or step end
  state[k + 4], state[rules + k + 4] = used, due
  heads = heads .. pack('<I6I6', newest, newest) .. '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- base, length, room, width
end
state[3] = release + (window > 60000 and 60000 or window) -- later than must be, as in `charge`
state[rules * 2 + 5], state[rules * 2 + 6] = since, state[3]
state[2] = pack(task[3], spread(state, 4, rules * 2 + 6)) .. heads .. labels
elseif what == 'fitting' then
-- Pass 1: how many times the units of a task fit.
-- now    in ms
-- task   what is asked
-- state  of the key
-- count  how many times are asked for
local now, task, state, count = ...
local value, unpack, at = state[1], struct.unpack, nil
local units, labels, dues = task[1], task[2], value and state[4] + 4
for k = 1, task[6] do
  local room = task[k + 6]
  local used = value and state[k + 4] or 0
  -- What is released can only make room: where one more fits without it, it need not be read.
  if value and (count > 1 or units > room - used) then
    at = 14 + state[4] * 14
    for _ = 2, k do at = at + 28 + unpack('<I4', value, at + 23) end
    local step, hold = unpack('<I6I6', labels, k * 12 - 11)
    local due = state[dues + k]
    local is_released = due <= now and (state[3] or unpack('<I6', value, at + 6) + hold <= now)
    if is_released or step > 140737488355328 then used = read_section(now, value, at, labels, k, used, due) end
    if step > 140737488355328 then used = math.ceil(used / (step - 140737488355328)) end
  end
  room = room - used
  if units > room then return 0 end
  if units > 0 then count = math.min(count, (room - room % units) / units) end
end
return count
elseif what == 'entry_format' then
-- How the entries of a queue are written.
-- width  as in a section's head; 0 is a queue that has had no entries
-- Returns the format of an entry, its size in bytes, and what both its numbers are counted modulo.
local width = ...
if width < 2 then return '<I2I2', 4, 65536 end
if width == 2 then return '<I4I4', 8, 4294967296 end
if width == 3 then return '<I7I7', 14, 9007199254740992 end
error('no such width')
elseif what == 'lower_bound' then
-- Finds a place in a queue by bisection: the numbers of steps, and the totals, grow from entry to entry.
-- source        the string that the entries stand in
-- live, behind  where the first of them begins, and the byte after the last
-- width         of the entries
-- of_totals     whether totals are compared, else numbers of steps
-- origin        what they are counted from, in units or steps
-- bound         in units or steps above the origin
-- Returns how many entries come before the first that is at least `bound`.
local source, live, behind, width, of_totals, origin, bound = ...
local unpack, entry, size, wrap = struct.unpack, seldom('entry_format', width)
local count = (behind - live) / size
count = count - count % 1 -- whole, even if the length is not
local low, high, probe = 0, count + 1, count -- the last first, as a silence releases all
while high - low > 1 do
  if probe >= high then probe = (low + high - (low + high) % 2) / 2 end
  local number, total = unpack(entry, source, live + (probe - 1) * size)
  if of_totals then number = total end
  if (number - origin) % wrap < bound then
    low, probe = probe, probe * 2
  else
    high, probe = probe, probe == count and 1 or high -- then 1, 2, 4, … from the first, as the answer is mostly small
  end
end
return low
elseif what == 'slow_path' then
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
return {
  front_format = front_format, last_believed = last_believed, start_of = start_of, release_of = release_of,
  due_of = due_of, least_width = least_width, rewrite = rewrite, cut = cut, section_bytes = section_bytes,
  relayout = relayout, after = after,
}
elseif what == 'settle' then
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
return settle
elseif what == 'blocks' then
-- Blocks: what a key named `!block` holds.

local pack, unpack, sub = struct.pack, struct.unpack, string.sub
local VERSION = 1

-- When a block ends, in ms, and who made it.
local function read_block(held)
  if #held ~= 8 then error('not a block') end
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
  return pack('<I1', place) .. held
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
    if held_until > now and held_until >= stop then return '\1' .. held end
  end
  held = pack('<I6I1I1', stop, by, VERSION)
  if stop > now then state[2], state[3] = held, stop end
  return '\1' .. held
end
return { block = block, later_block = later_block }
end
end
-- The operations of a call, one after another: each is decided in two passes, then written.
--
-- i, last         the first key of the first operation, and the last key of all operations
-- blocks          the last key of a block that was read; the keys of blocks stand behind `last`
-- now             in ms
-- replies         gets what is replied of each operation but the last; false if the call has one key
-- option, origin  the option of SET that gives a key its expiry, and what the expiry is counted from, in ms
-- Returns what is replied of the call.
-- An operation that cannot be done raises an error, before anything is written for it.
local i, last, blocks, now, replies, option, origin = ...
local KEYS, ARGV, redis, sub, struct, spread = KEYS, ARGV, redis, string.sub, struct, unpack or table.unpack
local pack, unpack = struct.pack, struct.unpack
local arg, task, action, checks, heeded -- the newest argument, and what it asks for
local are_buckets -- whether all of its rules are
local reply, admitted = nil, 0 -- of the newest operation
local whole_reply -- of a call of one key, that is a check of it

while i <= last do
  if reply then replies[#replies + 1] = reply end
  local first, kind, count, asked = i, nil, nil, nil
  local block -- the latest of the identities that the operation is about
  local state, is_last -- of the newest key
  local tasks, states -- of all keys, where there are several or the operation is no check

  -- Pass 1: reads every key, and tests how many times the units fit.
  repeat
    if ARGV[i] ~= arg then -- concurrent requests mostly ask the same of different keys
      arg = ARGV[i]
      local units, rules
      action, checks, units, heeded, rules = unpack('<I1I4I7I1I1', arg, 2)
      -- 128 rules more: all are buckets. Then the labels are read, too, and the dues are written with the counts.
      local counts_format, front_format, reply_format, labels_format
      if rules == 1 then
        counts_format, front_format, reply_format = '<I1I7', '<I1I7I7I6I6', '<I6I1I4I1I1I7'
      elseif rules == 3 then
        counts_format, front_format, reply_format = '<I1I7I7I7', '<I1I7I7I7I7I7I7I6I6', '<I6I1I4I1I1I7I7I7'
      elseif rules == 129 then
        rules, counts_format, labels_format = 1, '<I1I7I7', '<I1I7I6I6'
        front_format, reply_format = '<I1I7I7I6I6', '<I6I1I4I1I1I7'
      elseif rules == 131 then
        rules, counts_format, labels_format = 3, '<I1I7I7I7I7I7I7', '<I1I7I7I7I6I6I6I6I6I6'
        front_format, reply_format = '<I1I7I7I7I7I7I7I6I6', '<I6I1I4I1I1I7I7I7'
      else
        local n = rules % 128
        local each = string.rep('I7', n)
        counts_format, reply_format = '<I1' .. each, '<I6I1I4I1I1' .. each
        front_format = counts_format .. each .. 'I6I6'
        if rules > 128 then
          labels_format = counts_format .. string.rep('I6I6', n)
          rules, counts_format = n, counts_format .. each
        end
      end
      if action % 8 == 3 then units = -units end -- of a settlement that takes
      are_buckets = labels_format
      local labels, limits = sub(arg, 16 + rules * 7), labels_format or counts_format
      task = { units, labels, front_format, counts_format, reply_format, unpack(limits, arg, 15) }
      if are_buckets then task[6] = rules end
    end
    if i == first then
      kind, count = action % 8, action == 1 and admitted or checks
      for place = 0, heeded - 1 do
        blocks = blocks + 1
        local held = redis.pcall('GET', KEYS[blocks])
        if held then block = seldom('blocks').later_block(now, block, place, held) end
      end
      if block then count = 0 end
      asked = count
    end

    local units, labels, rules = task[1], task[2], task[6]
    local expiry = rules * 2 + 6 -- its place in a state
    -- False where there is no such key. Where it holds no string, a table: then `sub` raises an error.
    local value = asked > 0 and redis.pcall('GET', KEYS[i])
    state = nil
    if value and sub(value, -#labels) == labels then
      state = { value, false, false, unpack(task[3], value) }
      if state[4] ~= rules or state[expiry - 1] > now then state = nil end
    end
    if value and not state then -- it has other sections, or the clock has stepped back
      state = seldom('slow_path').relayout(now, value, task)
      expiry = state[4] * 2 + 6
    end
    if not state or state[expiry] <= now then
      state = { false, false, true }
    end

    if are_buckets and not state[3] then -- what is missing, and the time, replace what the state has of them
      local label = rules + 7
      for k = 5, rules + 4 do
        local per_unit, refill, due = task[label] - 140737488355328, task[label + 1], k + rules
        local missing, elapsed = state[k], now - state[due]
        if elapsed < 0 then -- the clock stepped back
          state = seldom('slow_path').relayout(now, value, task)
          count = seldom('fitting', now, task, state, count)
          break
        end
        missing = elapsed < missing / refill and missing - elapsed * refill or 0 -- as in `read_section`
        local room = (task[k + 2] * per_unit - missing) / per_unit
        if units > room then
          count = 0
        elseif count > 1 and units > 0 then
          room = room - room % 1
          count = math.min(count, (room - room % units) / units)
        end
        state[k], state[due], label = missing, now, label + 2
      end
    else -- in a settlement, too, where no count is asked for
      for k = 5, rules + 4 do -- the place of what is used in a state; that of the limit in a task is k + 2
        local used = state[k] or 0
        if count > 1 or units > task[k + 2] - used then
          local may_fit = state[1] and (state[3] or state[state[4] + k] <= now) -- else nothing has been released
          -- More than the limit is mostly used of a bucket, in units * ms. Those that this does not find are left to
          -- `fitting`, which costs more.
          local step = may_fit and count == 1 and used > task[k + 2] and unpack('<I6', labels, k * 12 - 59) or 0
          if step < 140737488355328 or units > task[k + 2] - math.ceil(used / (step - 140737488355328)) then
            count = (may_fit or count > 1) and seldom('fitting', now, task, state, count) or 0
            break
          end
        end
      end
    end
    i = i + 1
    is_last = i > last or (ARGV[i] == arg and action or string.byte(ARGV[i], 2)) < 8
    if states or not is_last or kind > 1 then
      tasks, states = tasks or {}, states or {}
      tasks[i - first], states[i - first] = task, state
    end
  until is_last

  -- Pass 2: charges every key, or explains of every key why it does not fit.
  if asked == 0 then
    if block then
      reply = '\3' .. block
    elseif kind == 4 then
      reply, state.is_gone = '\1', true
    elseif kind > 4 then
      reply = seldom('blocks').block(now, first, tasks, states)
    else
      reply = '\2'
    end
    admitted = 0
  elseif kind > 1 then
    reply = seldom('settle')(now, tasks, states)
  else
    reply = count == 1 and '\1\1\0\0\0' or count == 0 and '\1\0\0\0\0' or pack('<I1I4', 1, count)
    for key = 1, i - first do
      if states then task, state = tasks[key], states[key] end
      local units, stepped_back = task[1] * count, false
      if units > 0 and state[1] then
        stepped_back = charge(now, task, state, units, struct, sub, spread)
      elseif units > 0 then
        seldom('create', now, task, state, units)
      end
      if count < asked or units == 0 or stepped_back then
        local told = state[2] and seldom('slow_path').after(state) or state
        local explained = seldom('explain', now, task, told, count < asked and task[1] or 0, last == 1 and count or nil)
        if last == 1 then whole_reply = explained else reply = reply .. explained end
      elseif last > 1 then
        reply = reply .. '\2' .. sub(state[2], 1, 1 + task[6] * 7)
      else -- nothing else is replied: at once, as in `explain`
        whole_reply = pack(task[5], now, 1, count, 2, spread(state, 4, task[6] + 4))
      end
    end
    admitted = count
  end

  -- Writes.
  is_writing = true
  for key = 1, i - first do
    state = states and states[key] or state
    local name, written, how = KEYS[first + key - 1], state[2], state[3]
    if not written then
      if state.is_gone then redis.call('DEL', name) end
    elseif not how then
      redis.call('SETRANGE', name, '0', written)
    elseif how == true then
      redis.call('SET', name, written, 'KEEPTTL')
    else
      redis.call('SET', name, written, option, how - origin)
    end
  end
  is_writing = false
end
return whole_reply or pack('<I6', now) .. (replies and table.concat(replies) or '') .. (reply or '')
end
-- The call: its version, its time, and what becomes of operations that cannot be done. README.md beside this file says
-- what a call looks like.

local version, last, now, option, origin = ARGV[1] and string.byte(ARGV[1]), #ARGV, nil, 'PXAT', 0
if version == 1 then
  local time = redis.call('TIME')
  local ms = time[2] / 1000
  now = time[1] * 1000 + (ms - ms % 1) -- a whole number is added: the sum is exact
elseif version == 129 and #ARGV[last] == 6 then
  now, last = struct.unpack('<I6', ARGV[last]), last - 1
  option, origin = 'PX', now - 86400000 -- a day more, so that the server's clock ends no key during a test
else
  return redis.error_reply('CALLVERSION the call is of another version than the script')
end

-- An operation that cannot be done fails alone: it is stepped over, and its neighbours are decided.
local replies, done, reply = last > 1 and {}, false, nil
local i, blocks = 1, last -- the first key of the next operation, and the last key of a block that was read
while not done do
  done, reply = pcall(execute, i, last, blocks, now, replies, option, origin)
  if not done then
    if type(reply) == 'table' then reply = reply.err or '' end -- of some servers; of others it is a string
    if is_writing then -- no write of this call is accepted
      return redis.error_reply((string.gsub(reply, '^.*: %-', ''))) -- without the place in the script
    end
    -- The operation that failed is the one after those that were replied.
    local keys
    replies, i, blocks = replies or {}, 1, last
    for _ = 0, #replies do
      keys = {}
      for _ = 1, string.byte(ARGV[i], 14) do
        blocks = blocks + 1
        keys[#keys + 1] = KEYS[blocks]
      end
      repeat
        keys[#keys + 1] = KEYS[i]
        i = i + 1
      until i > last or string.byte(ARGV[i], 2) < 8
    end
    local reason = string.find(reply, 'a value of another version', 1, true) and '\3' or '\2'
    for _, key in ipairs(keys) do
      local value = redis.pcall('GET', key)
      if type(value) == 'table' then
        if not string.find(value.err, 'WRONGTYPE', 1, true) then
          redis.call('GET', key) -- not about the value: raised
        end
        reason = '\1'
      end
    end
    replies[#replies + 1] = '\0' .. reason
  end
end
return reply
