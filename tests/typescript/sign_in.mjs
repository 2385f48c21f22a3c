// A client that knows nothing but an address signs its person in, lists and calls, and later
// refreshes what it was given. The person's browser is played here, with plain forms.
// Prints what it saw as one line of JSON.
//
//   node sign_in.mjs URL v1|v2-legacy|v2-modern TOKEN

const [url, kind, token] = process.argv.slice(2);
const sdk = kind === 'v1' ? await firstGeneration() : await import('@modelcontextprotocol/client');
const REDIRECT = 'http://127.0.0.1:41997/callback';

async function firstGeneration() {
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
  const { StreamableHTTPClientTransport } = await import(
    '@modelcontextprotocol/sdk/client/streamableHttp.js'
  );
  return { Client, StreamableHTTPClientTransport };
}

const unescape = (text) =>
  text.replaceAll('&#34;', '"').replaceAll('&#39;', "'").replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&amp;', '&');

class Person {
  constructor() {
    this.cookies = new Map();
    this.asked = 0;
  }

  async fetch(address, options = {}) {
    const cookie = [...this.cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const answer = await fetch(address, {
      redirect: 'manual',
      ...options,
      headers: { ...options.headers, cookie },
    });
    for (const line of answer.headers.getSetCookie()) {
      const [, name, value] = line.match(/^([^=]+)=([^;]*)/);
      this.cookies.set(name, value);
    }
    return answer;
  }

  // Opens an address and does what its pages ask, until it is sent back to the client.
  async visit(address) {
    for (let step = 0; step < 8; step += 1) {
      let answer = await this.fetch(address);
      const page = answer.status === 200 ? await answer.text() : '';
      const form = page.match(/<form method="post" action="(\/oauth\/(?:sign-in|consent))".*?<\/form>/s);
      if (form) {
        const hidden = form[0].matchAll(/<input type="hidden" name="([^"]+)" value="([^"]*)"/g);
        const fields = Object.fromEntries([...hidden].map(([, name, value]) => [name, unescape(value)]));
        this.asked += form[1].endsWith('consent') ? 1 : 0;
        const body = new URLSearchParams({ ...fields, token, decision: 'allow', 'tools:write': 'on' });
        answer = await this.fetch(new URL(form[1], address), { method: 'POST', body });
      }
      const location = answer.headers.get('location');
      if (!location) throw new Error(`${answer.status} ${page.slice(0, 300)}`);
      address = new URL(location, address);
      if (address.href.startsWith(REDIRECT)) return address;
    }
    throw new Error('no way back');
  }
}

class Auth {
  constructor(person) {
    this.person = person;
  }
  get redirectUrl() {
    return REDIRECT;
  }
  get clientMetadata() {
    return { client_name: `sign-in ${kind}`, redirect_uris: [REDIRECT] };
  }
  clientInformation() {
    return this.client;
  }
  saveClientInformation(client) {
    this.client = client;
  }
  tokens() {
    return this.given;
  }
  saveTokens(given) {
    this.given = given;
  }
  saveCodeVerifier(verifier) {
    this.verifier = verifier;
  }
  codeVerifier() {
    return this.verifier;
  }
  async redirectToAuthorization(address) {
    this.back = await this.person.visit(address);
  }
}

async function connected(authProvider) {
  const options = kind === 'v2-modern' ? { versionNegotiation: { mode: { pin: '2026-07-28' } } } : {};
  const transport = () => new sdk.StreamableHTTPClientTransport(new URL(url), { authProvider });
  const client = () => new sdk.Client({ name: `sign-in ${kind}`, version: '1' }, options);
  const first = transport();
  try {
    const made = client();
    await made.connect(first);
    return made;
  } catch (error) {
    if (!authProvider.back) throw error;
  }
  const params = authProvider.back.searchParams;
  await first.finishAuth(kind === 'v1' ? params.get('code') : params);
  const made = client();
  await made.connect(transport());
  return made;
}

const person = new Person();
const auth = new Auth(person);
const client = await connected(auth);
const listed = (await client.listTools()).tools.map((tool) => tool.name);
const result = await client.callTool({ name: 'demo_list_books', arguments: {} });
await client.close();

// The access token is lost, the refresh token is not: nobody is asked again.
auth.back = undefined;
auth.given = { ...auth.given, access_token: 'lost' };
const again = await connected(auth);
const later = (await again.listTools()).tools.length;
await again.close();
console.log(
  JSON.stringify({
    listed: listed.includes('demo_list_books'),
    failed: result.isError ?? false,
    asked: person.asked,
    later: later === listed.length,
  }),
);
process.exit(0);
