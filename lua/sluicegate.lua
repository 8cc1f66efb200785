-- Decides checks and settles them: all charges of a check or none, each under every rule of its policy, in one atomic step.
-- README.md beside this file draws the stored value and explains the words.
--
-- KEYS[i]      the key of charge i; the charges of one check follow one another
-- ARGV[i]      what to do with KEYS[i]:
--                I1 action: 0 begins a check, 1 belongs to the check before it, 2 adds and 3 takes units in a settlement
--                I7 units: the cost of the charge, or the difference of the settlement
--                I1 how many rules follow
--                I7 limit of each; in a settlement, the end of the charged step
--                I6 step, I6 hold of each: the spans, as they stand in the value
-- ARGV[#KEYS + 1]  the time in ms, where it is not the server's clock that counts (tests)
-- Reply        one string: I6 the time; then for each key
--                I1 0 or 3 if its check is refused, 1 or 2 if not
--                after 2 and 3: I1 how many rules the value has; I7 used of each, whose newest step is that of the time
--                after 3 also: I6 of each, when the cost fits, 0 if it does already or never will
--                after 0 and 1, for each: I7 used; I6 the end of its newest step, 0 for that of the time; I6 when the cost
--                fits, 0 if it does already or never will
--
-- Writes nothing when a check is refused or costs nothing. All numbers are whole, all times are in ms.

local pack, unpack, spread, sub, call = struct.pack, struct.unpack, unpack or table.unpack, string.sub, redis.call

local now, expires, origin = ARGV[#KEYS + 1], 'PXAT', 0
if now then
  now = tonumber(now)
  expires, origin = 'PX', now - 86400000 -- a day more: a clock that is set by hand must not meet real expiry
else
  local time = call('TIME')
  local ms = time[2] / 1000
  now = time[1] * 1000 + ms - ms % 1
end

-- These functions take all they need as arguments: a closure over it costs as much as a look at the value.

-- How many of the first entries are at least `age` steps older than `newest`, or hold less than `sum` in all; the total of
-- the last of them; and the step of the one that follows (nil behind the end). Asks the last first, as a silence releases all,
-- and gallops from the first, as the answer is mostly small.
local function leading(value, at, count, entry, size, wrap, newest, age, base, sum)
  local unpack = struct.unpack
  local low, high, probe, last, following = 0, count - count % 1 + 1, count - count % 1, nil, nil
  while high - low > 1 do
    if probe >= high then probe = (low + high - (low + high) % 2) / 2 end
    local step, total = unpack(entry, value, at + (probe - 1) * size)
    local leads
    if age then leads = (newest - step) % wrap >= age else leads = (total - base) % wrap < sum end
    if leads then
      low, last, probe = probe, total, probe * 2
    else
      high, following, probe = probe, step, following and high or 1
    end
  end
  return low, last, following
end

-- What is needed when sections are not as the caller expects them, when a clock steps back, and when a check is settled.
local function seldom(now, leading)
  local pack, unpack, sub, made = struct.pack, struct.unpack, string.sub, {}
  local MOST = 9007199254740991 -- 2^53 - 1
  local HEAD = '<I6I6I7I4I4I1' -- newest, first, base, length and room of the queue, width
  local ENTRY, SIZE, WRAP = { '<I2I2', '<I4I4', '<I7I7' }, { 4, 8, 14 }, { 65536, 4294967296, MOST + 1 }

  -- The end of the last step that is believed: one further ahead was charged while the clock was wrong.
  function made.believed(step, hold)
    return now + step + step + math.max(step, hold)
  end

  -- A queue written anew, in wider entries if need be, with the step that ends it; its width. Totals start from 0.
  function made.rewrite(queue, width, number, base, used)
    local to = width
    while used >= WRAP[to] do to = to + 1 end
    local entries = {}
    for at = 1, #queue, SIZE[width] do
      local step, total = unpack(ENTRY[width], queue, at)
      step = number - (number - step) % WRAP[width]
      entries[#entries + 1] = pack(ENTRY[to], step % WRAP[to], (total - base) % WRAP[width])
    end
    entries[#entries + 1] = pack(ENTRY[to], number % WRAP[to], used)
    return table.concat(entries), to
  end

  -- A section after `units` were added to the step that ends at `stop`, or taken from it: its queue, with totals from 0,
  -- what else is in it, and whether anything changed.
  function made.settle(queue, width, step, newest, base, used, stop, units)
    local ends, counts, before, open = {}, {}, base, used
    for at = 1, #queue, SIZE[width] do
      local number, sum = unpack(ENTRY[width], queue, at)
      ends[#ends + 1] = newest - (newest / step - number) % WRAP[width] * step
      counts[#counts + 1] = (sum - before) % WRAP[width]
      before, open = sum, open - counts[#counts]
    end
    if open > 0 then ends[#ends + 1], counts[#counts + 1] = newest, open end
    local place = #ends + 1
    while place > 1 and ends[place - 1] >= stop do place = place - 1 end
    if ends[place] ~= stop then
      table.insert(ends, place, stop)
      table.insert(counts, place, 0)
    end
    units = math.max(math.min(units, MOST - used), -counts[place])
    counts[place] = counts[place] + units
    if counts[place] == 0 then
      table.remove(ends, place)
      table.remove(counts, place)
    end
    local steps = #ends > 1 and (ends[#ends] - ends[1]) / step or 0
    while math.max(used + units, steps) >= WRAP[width] do width = width + 1 end
    local entries, sum = {}, 0
    for entry = 1, #ends - 1 do
      sum = sum + counts[entry]
      entries[entry] = pack(ENTRY[width], ends[entry] / step % WRAP[width], sum)
    end
    return table.concat(entries), width, ends[#ends] or newest, ends[1] or newest, used + units, units ~= 0
  end

  -- Takes out the steps that are not believed.
  local function trim(section)
    local last, step, queue = made.believed(section.step, section.hold), section.step, section.queue
    if section.used == 0 or section.newest <= last then return end
    local entry, size, wrap = ENTRY[section.width], SIZE[section.width], WRAP[section.width]
    local number, age = section.newest / step, (section.newest - last) / step
    local left, total = leading(queue, 1, #queue / size, entry, size, wrap, number, age)
    if left == 0 then
      section.used = 0
    else
      local at = (left - 1) * size
      section.newest = section.newest - (number - unpack(entry, queue, at + 1)) % wrap * step
      section.used, section.queue = (total - section.base) % wrap, sub(queue, 1, at)
    end
  end

  local function parse(value)
    local sections, count = {}, string.byte(value)
    assert((count or 0) > 0, 'a value of no sections')
    local used = { unpack('<I1' .. string.rep('I7', count), value) }
    local at, label = 14 + count * 14, #value - count * 12
    for k = 1, count do
      local section = { used = used[k + 1], span = sub(value, label + k * 12 - 11, label + k * 12) }
      local length, room
      section.step, section.hold = unpack('<I6I6', section.span)
      section.newest, section.first, section.base, length, room, section.width = unpack(HEAD, value, at)
      section.queue = sub(value, at + 28, at + 27 + length)
      sections[k], at = section, at + 28 + room
    end
    assert(at == label + 1, 'a value of another length')
    return sections
  end

  -- The value with the caller's sections in front and in its order, empty where they are new and without steps that are not
  -- believed, then those of others that still count.
  function made.conform(value, spans)
    local stored, found, sections = value and parse(value) or {}, {}, {}
    for _, section in ipairs(stored) do found[section.span] = section end
    for at = 1, #spans, 12 do
      local span = sub(spans, at, at + 11)
      local own = found[span]
      found[span] = nil
      if own then trim(own) end
      if not own or own.used == 0 then
        own = { used = 0, span = span, newest = 0, step = 0, hold = 0, first = 0, base = 0, queue = '', width = 0 }
      end
      sections[#sections + 1] = own
    end
    for _, other in ipairs(stored) do
      if found[other.span] and other.used > 0 and other.newest + other.hold > now and #sections < 255 then
        sections[#sections + 1] = other
      end
    end
    local used, labels, bodies, since, till = {}, {}, {}, 0, 0
    for k, section in ipairs(sections) do
      since, till = math.max(since, section.newest - section.step), math.max(till, section.newest + section.hold)
      used[k], labels[k] = pack('<I7', section.used), section.span
      local length = #section.queue
      bodies[k] = pack(HEAD, section.newest, section.first, section.base, length, length, section.width) .. section.queue
    end
    -- All are due: whoever comes next looks at them closely.
    local front = pack('<I1', #sections) .. table.concat(used) .. pack('<I6I6', since, till) .. string.rep('\0', 7 * #sections)
    return front .. table.concat(bodies) .. table.concat(labels)
  end

  return made
end

-- Brings sections up to date: all, or for a charge those that are due, while the clock runs on. No value: nothing counts.
-- Charges or settles, and returns what is to be stored (nil if it may stay as it is, '' if nothing counts any more) and when it
-- expires (nil if only the start is to be stored, 0 if it expires when it did); or looks, and returns whether the cost fits.
-- The third result is what to reply of each rule, nil if its count says all.
local function advance(now, pack, unpack, sub, spread, leading, seldom, value, fields, format, rules, spans, looks, action, units,
    limits, whole)
  local changed = '' -- sections, as they are to follow the front
  if not value then
    local since, till = 0, 0
    fields = { rules }
    for k = 1, rules do
      local step, hold = unpack('<I6I6', spans, k * 12 - 11)
      local start = now - now % step
      local newest = start + step
      if start > since then since = start end
      if newest + hold > till then till = newest + hold end
      fields[k + 1], fields[rules + 3 + k] = units, newest
      changed = changed .. pack('<I6I6I7I4I4I1', newest, newest, 0, 0, 0, hold / step < 4096 and 1 or hold / step < 4294967290 and 2 or 3)
    end
    fields[rules + 2], fields[rules + 3] = since, till
    return pack(format, spread(fields, 1, 3 + rules * 2)) .. changed .. spans, till
  end

  local sections = fields[1]
  local since, till, dues = fields[sections + 2], fields[sections + 3], sections + 3
  local settles, was, told = action > 1, whole and 0 or till, nil
  if looks or settles or now < since then told = '' end
  local fits, changes, counts = true, not settles, sections > rules
  local made = settles and seldom(now, leading)
  local at, passed = 14 + sections * 14, 0 -- the section behind those that were passed
  local copied = at -- what lies before it is in `changed`, or older than that
  for k = 1, rules do
    local limit, used = limits[k + 1], fields[k + 1]
    if now < fields[dues + k] and not settles and (not looks or used + units <= limit) then
      if told then told = told .. pack('<I7I6I6', used, 0, 0) end
      if not looks then fields[k + 1], counts = used + units, true end
    else
      while passed < k - 1 do
        passed, at = passed + 1, at + 28 + unpack('<I4', value, at + 23)
      end
      local step, hold = unpack('<I6I6', spans, k * 12 - 11)
      local newest, first, base, length, room, width = unpack('<I6I6I7I4I4I1', value, at)
      local time = now
      if newest - step > now and used > 0 then -- the clock stepped back: time stands still until it has caught up
        time = newest - step
      end

      -- Release: of the queue, the entries from `live` on still count; `added` will follow them.
      local queue = at + 28
      local live, behind, behind_room, added, fits_at = queue, queue + length, queue + room, '', 0
      if newest + hold <= time or used == 0 then
        newest = now - now % step + step
        first, base, used, live = newest, 0, 0, behind
        width = hold / step < 4096 and 1 or hold / step < 4294967290 and 2 or 3
      end
      local entry, size, wrap = '<I2I2', 4, 65536
      if width == 2 then
        entry, size, wrap = '<I4I4', 8, 4294967296
      elseif width == 3 then
        entry, size, wrap = '<I7I7', 14, 9007199254740992
      end
      local number = newest / step
      if first + hold <= time then
        local age = (newest + hold - time) / step
        local gone, total, following = 1, nil, nil
        if length > size then total, following = unpack(entry, value, queue + size / 2) end
        if not following or (number - following) % wrap >= age then
          gone, total, following = leading(value, queue, length / size, entry, size, wrap, number, age)
        end
        used, base, live = used - (total - base) % wrap, total, queue + gone * size
        first = following and newest - (number - following) % wrap * step or newest
      end

      if settles then
        -- `limit` is the end of the step that was charged.
        if limit + hold > time and limit <= made.believed(step, hold) then
          local difference, differs = action == 2 and units or -units, nil
          added, width, newest, first, used, differs =
            made.settle(sub(value, live, behind - 1), width, step, newest, base, used, limit, difference)
          base, live, changes = 0, behind, changes or differs
        end
      elseif not looks then
        if now >= newest then
          if used >= wrap or base + used > 9007199254740991 then
            added, width = seldom(now, leading).rewrite(sub(value, live, behind - 1), width, number, base, used)
            base, live = 0, behind
          else
            added = pack(entry, number % wrap, (base + used) % wrap)
          end
          newest = now - now % step + step
        end
        used = used + units
      elseif used + units > limit then
        fits = false
        if units <= limit then
          fits_at = first + hold -- the first step that goes makes room for one
          if used - (limit - units) > 1 then
            local sum = used - limit + units
            local _, _, following = leading(value, live, (behind - live) / size, entry, size, wrap, number, nil, base, sum)
            fits_at = newest + hold - (following and (number - following) % wrap * step or 0)
          end
        end
      end

      if told then told = told .. pack('<I7I6I6', used, newest, fits_at) end
      if not looks then
        if copied < at then changed = changed .. sub(value, copied, at - 1) end
        length = behind - live + #added
        if length > room then
          room = room > 16 and room * 2 or 32
          if length > room then room = length end
        elseif room > 64 and length * 4 < room then
          room = length > 16 and length * 2 or 32
        end
        local head = pack('<I6I6I7I4I4I1', newest, first, base, length, room, width)
        if room ~= behind_room - queue then
          if behind > #value + 1 then error('a queue is longer than its value') end
          changed = changed .. head .. sub(value, live, behind - 1) .. added .. string.rep('\0', room - length)
          copied, whole = behind_room, true
        elseif length > 0 and (live > queue or added ~= '') then
          changed, copied = changed .. head .. sub(value, live, behind - 1) .. added, queue + length
        else
          changed, copied = changed .. head, queue
        end
        fields[k + 1], fields[dues + k] = used, 0
        if used > 0 then
          local due, start, release = first + hold, newest - step, newest + hold
          if due > newest then due = newest end
          if start > since then since = start end
          if release > till then till = release end
          fields[dues + k], counts = due, true
        end
      end
      at, passed = behind_room, k
    end
  end

  if looks then return fits, nil, told end
  if not changes then return nil, nil, told end
  if not counts then return '', nil, told end
  fields[sections + 2], fields[sections + 3] = since, till
  local front = pack(format, spread(fields))
  if whole or till > was then
    return front .. changed .. sub(value, copied), till > was and till or 0, told
  end
  return front .. changed, nil, told
end

-- Charge by charge. A check is tried as if it fitted: what it would write is put aside until its last charge has passed.
-- If one does not, the check is looked at again from its first charge, and the reply says when the cost fits.
local KEYS, ARGV = KEYS, ARGV
local reply, writes, i, begin, looks = pack('<I6', now), nil, 1, 1, false
local before = reply -- what is replied to the checks before this one
local known -- the values of a check with several charges, for when it is looked at again
local args, action, units, rules, limits, spans, counts_format, front_format -- what to do with KEYS[i]
while KEYS[i] do
  if ARGV[i] ~= args then -- concurrent requests mostly ask the same of different keys
    args = ARGV[i]
    action, units, rules = unpack('<I1I7I1', args)
    if rules == 3 then
      counts_format, front_format = '<I1I7I7I7', '<I1I7I7I7I6I6I7I7I7'
    else
      local each = string.rep('I7', rules)
      counts_format = '<I1' .. each
      front_format = counts_format .. 'I6I6' .. each
    end
    limits = { unpack(counts_format, args, 9) }
    spans = sub(args, 10 + rules * 7)
  end

  local value, fields, nothing, whole = known and known[i] or call('GET', KEYS[i]), nil, false, false
  local format = front_format -- that of the value
  if value and sub(value, -#spans) == spans then
    fields = { unpack(front_format, value) }
    if fields[1] ~= rules or fields[rules + 2] > now then
      fields = nil
    else
      nothing = fields[rules + 3] <= now
    end
  end
  nothing = (not value or nothing) and action < 2
  if not fields and not nothing then
    value, whole = seldom(now, leading).conform(value, spans), true
    local each = string.rep('I7', string.byte(value))
    format = '<I1' .. each .. 'I6I6' .. each
    fields = { unpack(format, value) }
  end
  local fits, current = true, action < 2 and not nothing
  if nothing then
    for k = 2, rules + 1 do
      if units > limits[k] then fits = false end
    end
  else
    local dues = fields[1] + 2
    for k = 2, rules + 1 do
      if fields[k] + units > limits[k] then fits = false end
      if fields[dues + k] <= now then current = false end
    end
  end

  local flag, answer, written, till, again
  if nothing then
    if not fits and not looks then looks, again = true, i > begin end
    if looks then
      flag, answer = '\3', pack('<I1', rules) .. string.rep('\0', rules * 13)
    elseif units == 0 then
      flag, answer = '\2', pack('<I1', rules) .. string.rep('\0', rules * 7)
    end
    value = nil
  elseif current and not fits and not looks and i == begin then
    -- A refusal that has nothing to bring up to date: all that its answer may need from behind the counts is the oldest step.
    answer = ''
    local at = 14 + rules * 14
    for k = 2, rules + 1 do
      local room = limits[k] - units
      if fields[k] <= room or room < 0 then
        answer = answer .. '\0\0\0\0\0\0'
      elseif fields[k] - room == 1 then
        local hold = unpack('<I6', spans, k * 12 - 17)
        answer = answer .. pack('<I6', unpack('<I6', value, at + 6) + hold) -- the first step that goes makes room for one
      else
        answer = nil
        break
      end
      if k <= rules then at = at + 28 + unpack('<I4', value, at + 23) end
    end
    if answer then looks, flag, answer = true, '\3', sub(value, 1, 1 + rules * 7) .. answer end
  end
  if not answer and action < 2 and (looks or not fits or units == 0 and not current) then
    fits, till, answer = advance(now, pack, unpack, sub, spread, leading, seldom, value, fields, format, rules, spans, true, action,
      units, limits)
    if not fits and not looks then looks, again = true, i > begin end
    flag = looks and '\0' or '\1'
  end
  if again then
    reply, writes, i = before, nil, begin
  else
    if looks then
      -- its answer is known
    elseif action < 2 and units == 0 then
      if not answer then flag, answer = '\2', sub(value, 1, 1 + rules * 7) end
    elseif current then
      for k = 2, rules + 1 do fields[k] = fields[k] + units end
      written = pack(counts_format, spread(fields, 1, rules + 1))
      flag, answer = '\2', written
    else
      written, till, answer = advance(now, pack, unpack, sub, spread, leading, seldom, value, fields, format, rules, spans, false,
        action, units, limits, whole)
      flag = '\1'
      if not answer then flag, answer = '\2', sub(written, 1, 1 + rules * 7) end
    end

    local following = KEYS[i + 1] and ARGV[i + 1]
    local last = not following or (following == args and action or string.byte(following)) ~= 1
    if not last then
      if written then writes = { KEYS[i], written, till, writes } end
      known = known or {}
      if not whole then known[i] = value end
    end
    reply, i = reply .. flag .. answer, i + 1
    if last then
      local key = written and KEYS[i - 1]
      if not key and writes then key, written, till, writes = writes[1], writes[2], writes[3], writes[4] end
      while key do
        if written == '' then
          call('DEL', key)
        elseif not till then
          call('SETRANGE', key, '0', written)
        elseif till > 0 then
          call('SET', key, written, expires, till - origin)
        else
          call('SET', key, written, 'KEEPTTL')
        end
        key = nil
        if writes then key, written, till, writes = writes[1], writes[2], writes[3], writes[4] end
      end
      before, known, looks, begin = reply, nil, false, i
    end
  end
end
return reply
