-- The value of a key: a section for each rule.

-- The string that KEYS[i] holds; false if there is none.
local function get(i)
  if stored[i] == nil then stored[i] = redis.pcall('GET', KEYS[i]) end -- else read by the fast path
  local value = stored[i]
  if type(value) == 'table' then error({ problem = value.err }) end
  return value
end

-- A section without units. All fields have a value at once, which is cheaper than to add them later.
local function new_section(label, expires)
  return {
    rule = nil, label = label, expires = expires,
    used = 0, due = 0, newest = 0, first = 0, base = 0, room = 0, width = 0, queue = '',
    units = 0, start = 0, release = 0,
  }
end

-- The sections of a value, by label and in order; and when the key expires.
local function parse(value)
  if byte(value, -1) ~= VALUE_VERSION then fail(OTHER_VERSION) end
  local sections, count = {}, byte(value)
  local used_at, due_at, label_at = 2, 2 + count * COUNT_SIZE, #value - count * LABEL_SIZE
  local labels_at = label_at
  local _, expires, at = unpack(FRONT_END, value, due_at + count * COUNT_SIZE)
  for k = 1, count do
    local section, length = new_section(sub(value, label_at, label_at + LABEL_SIZE - 1), expires), nil
    section.used, used_at = unpack(COUNT, value, used_at)
    section.due, due_at = unpack(COUNT, value, due_at)
    section.newest, section.first, section.base, length, section.room, section.width, at = unpack(HEAD, value, at)
    section.queue = sub(value, at, at + length - 1)
    at, label_at = at + section.room, label_at + LABEL_SIZE
    sections[k], sections[section.label] = section, section
  end
  if count == 0 or at ~= labels_at then fail(UNREADABLE) end
  return sections, expires
end

-- Brings a section up to date.
local function update(section, rule)
  section.rule = rule
  rule.kind.advance(section)
  rule.kind.describe(section)
  return section
end

-- Reads the key of a part: the expiry, and the sections, brought up to date. First come those of the part's rules, then
-- those of other rules that still count, so that two releases with different rules can share a key.
local function read(part)
  if part.are_slots then fail(UNREADABLE) end
  local value, held, sections = get(part.i), {}, {}
  part.sections, part.expires = sections, 0
  if value then held, part.expires = parse(value) end
  if part.expires <= now then held, part.expires = {}, 0 end -- nothing counts: begin with empty queues
  for k, rule in ipairs(part.rules) do
    sections[k] = update(held[rule.label] or new_section(), rule)
  end
  for _, section in ipairs(held) do
    if not section.rule and #sections < MOST_SECTIONS then
      update(section, rule_of(section.label))
      if section.used > 0 then sections[#sections + 1] = section end
    end
  end
end

-- The room of a queue, in bytes, so that the queue can grow and shrink while the bytes behind stay in place.
local function room_of(section)
  local length, room = #section.queue, math.max(section.room, section.rule.least_room)
  if length > room then return math.max(length, room * 2, 32) end
  if room > 64 and length * 4 < room then return math.max(length * 2, 32) end
  return room
end

local function section_bytes(section)
  local length, room = #section.queue, room_of(section)
  return pack(HEAD, section.newest, section.first, section.base, length, room, section.width)
    .. section.queue .. string.rep('\0', room - length)
end

-- Leaves the sections of a part to be written. The key expires at the last release or at most a minute later, so that
-- most new steps need no new expiry.
local function write(part)
  local used, dues, bodies, labels, since, latest = '', '', '', '', 0, nil
  for _, section in ipairs(part.sections) do
    section.rule.kind.describe(section)
    local counts = section.used > 0
    used, dues = used .. pack(COUNT, section.used), dues .. pack(COUNT, counts and section.due or 0)
    bodies, labels = bodies .. section_bytes(section), labels .. section.rule.label
    if counts then since = math.max(since, section.start) end
    if counts and (not latest or section.release > latest.release) then latest = section end
  end
  if not latest then
    values[part.i] = GONE
    return
  end
  local expires, release = part.expires, latest.release
  if expires < release or expires > release + A_MINUTE then
    expires = release + math.min(latest.rule.window, A_MINUTE)
  end
  if expires % 1 ~= 0 or expires <= now or expires >= 2 ^ 48 then fail(UNREADABLE) end -- from spoiled times
  expiries[part.i] = expires
  values[part.i] = string.char(#part.sections) .. used .. dues .. pack(FRONT_END, since, expires) .. bodies .. labels
    .. string.char(VALUE_VERSION)
end
