// One client's journey: list page by page, call with progress, make the list change, hear of it,
// list again. With ROWS, a journey to a tool that promises what it answers (tests/report_peer.py).
// Prints what it saw as one line of JSON.
//
//   node journey.mjs URL v1|v2-legacy|v2-modern [ROWS]

const [url, kind, rows] = process.argv.slice(2);
const DEADLINE_MS = 15_000;
const TOKEN = process.env.GATEWAY_TOKEN;

const sdk = kind === 'v1' ? await firstGeneration() : await secondGeneration();

async function firstGeneration() {
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
  const http = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
  return { Client, Transport: http.StreamableHTTPClientTransport };
}

async function secondGeneration() {
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  return { Client, Transport: StreamableHTTPClientTransport };
}

function changes() {
  let heard = 0;
  let wake;
  const first = new Promise((resolve) => (wake = resolve));
  const onChanged = () => {
    heard += 1;
    wake();
  };
  return { first, onChanged, count: () => heard };
}

async function names(client) {
  const found = [];
  let cursor;
  let pages = 0;
  do {
    const page = await client.listTools(cursor === undefined ? undefined : { cursor });
    found.push(...page.tools.map((tool) => tool.name));
    cursor = page.nextCursor;
    pages += 1;
  } while (cursor !== undefined && pages < 100);
  return found;
}

async function connected(options) {
  if (kind === 'v2-modern') options.versionNegotiation = { mode: { pin: '2026-07-28' } };
  const client = new sdk.Client({ name: `journey-${kind}`, version: '1' }, options);
  const headers = TOKEN ? { authorization: `Bearer ${TOKEN}` } : {};
  await client.connect(new sdk.Transport(new URL(url), { requestInit: { headers } }));
  return client;
}

async function answers() {
  const client = await connected({ capabilities: {} });
  const { tools } = await client.listTools();
  const call = (name, given) => client.callTool({ name, arguments: given });
  const small = await call('far_report', { rows: 2 });
  const cut = (await call('far_report', { rows: Number(rows) })).structuredContent;
  const asked = { result_id: cut.result_id, pointer: '/rows', offset: rows - 1 };
  const last = await call('read_result', asked);
  const refused = await call('far_report', { rows: 'many' });
  const failed = await call('far_report', { rows: 1, fail: true });
  await client.close();
  const { properties, anyOf } = tools.find((tool) => tool.name === 'far_report').outputSchema;
  return {
    promised: Object.keys({ ...properties, ...anyOf[0].properties }).sort(),
    small: small.structuredContent,
    truncated: cut.truncated,
    last: last.structuredContent.value,
    refused: refused.isError && refused.structuredContent.error.code,
    failed: failed.isError && failed.content[0].text,
  };
}

async function journey() {
  const changed = changes();
  const client = await connected({
    capabilities: {},
    listChanged: { tools: { onChanged: changed.onChanged, autoRefresh: false } },
  });
  const before = await names(client);
  const progress = [];
  const call = { name: 'report', arguments: { greeting: 'grüß dich' } };
  const seen = { onprogress: (one) => progress.push(one.progress) };
  const result = kind === 'v1'
    ? await client.callTool(call, undefined, seen)
    : await client.callTool(call, seen);
  const unknown = await client.callTool({ name: 'no_such_tool', arguments: {} })
    .then(() => 'answered', (error) => error.code);
  await client.callTool({ name: 'grow', arguments: { name: `made_by_${kind}` } });
  await changed.first;
  const after = await names(client);
  await client.close();
  return {
    before: before.length,
    result: result.structuredContent,
    progress,
    unknown,
    heard: changed.count(),
    added: after.filter((name) => !before.includes(name)),
  };
}

const late = setTimeout(() => {
  console.error(`${kind}: nothing for ${DEADLINE_MS} ms`);
  process.exit(1);
}, DEADLINE_MS);
console.log(JSON.stringify(await (rows ? answers() : journey())));
clearTimeout(late);
process.exit(0);
