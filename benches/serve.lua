-- Requests for wrk: the queries of queries.txt, one after the other. Written beside it by `serve.py --keep FOLDER`.
local queries, place = {}, 0
for line in io.lines("queries.txt") do queries[#queries + 1] = line end
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
  place = place % #queries + 1
  return wrk.format(nil, nil, nil, '{"queries": ["' .. queries[place] .. '"], "topk": 3, "return_scores": true}')
end
