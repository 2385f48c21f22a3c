// One client's journey: list page by page, call with progress, make the list change, hear of it,
// list again. Prints what it saw as one line of JSON.
//
//   node journey.mjs URL v1|v2-legacy|v2-modern

const [url, kind] = process.argv.slice(2);
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

async function journey() {
  const changed = changes();
  const options = {
    capabilities: {},
    listChanged: { tools: { onChanged: changed.onChanged, autoRefresh: false } },
  };
  if (kind === 'v2-modern') options.versionNegotiation = { mode: { pin: '2026-07-28' } };
  const client = new sdk.Client({ name: `journey-${kind}`, version: '1' }, options);
  const headers = TOKEN ? { authorization: `Bearer ${TOKEN}` } : {};
  await client.connect(new sdk.Transport(new URL(url), { requestInit: { headers } }));
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
console.log(JSON.stringify(await journey()));
clearTimeout(late);
process.exit(0);
