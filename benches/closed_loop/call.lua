-- A closed loop of 200-byte echo calls for wrk. Every request has an id of its
-- own; SESSIONS holds the session ids, which the threads take in turn.
local sessions = {}
for id in os.getenv("SESSIONS"):gmatch("[^,]+") do sessions[#sessions + 1] = id end
local threads = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init()
  count = 0
  heads = {}
  for i, id in ipairs(sessions) do
    heads[i] = {
      ["Content-Type"] = "application/json",
      ["Accept"] = "application/json, text/event-stream",
      ["Mcp-Session-Id"] = id,
      ["MCP-Protocol-Version"] = "2025-11-25",
    }
  end
  text = string.rep("x", 200 - 120)
end

function request()
  count = count + 1
  local id = number * 1000000000 + count
  local body = '{"jsonrpc":"2.0","id":' .. id
    .. ',"method":"tools/call","params":{"name":"echo","arguments":{"message":"' .. text .. id .. '"}}}'
  return wrk.format("POST", nil, heads[count % #sessions + 1], body)
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format("RESULT calls=%d us=%d p50=%d p99=%d status=%d read=%d timeout=%d\n",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.read, errors.timeout))
end
