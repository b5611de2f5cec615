# frozen_string_literal: true

require "tracepoint"
require_relative "argument_reader"
require "net/http"

module Tracepoint
  # Requests of Net::HTTP as spans `net_http:request`, from writing the request to reading
  # the response. This includes requests of libraries that use Net::HTTP.
  #
  #   require "tracepoint/net_http"
  #
  # Arguments: `method`, `host`, and `path` without the query. Result: `status`. Opening a
  # connection is a separate span, `net_http:connect`, with `host` and `port`.
  module NetHTTP
    REQUEST = Tracepoint.define_span(:request, { method: String, host: String, path: String },
                                     provider: :net_http, result: { status: Integer })
    CONNECT = Tracepoint.define_span(:connect, { host: String, port: Integer }, provider: :net_http)
    REQUESTED = ArgumentReader.new(REQUEST)
    CONNECTED = ArgumentReader.new(CONNECT)
    private_constant :REQUESTED, :CONNECTED

    # Prepended to Net::HTTP. `request` calls itself if it has to connect first, so this
    # wraps `transport_request`, which runs once.
    # @api private
    module Exchange
      private

      def transport_request(request)
        arguments = REQUESTED.read { [request.method, address, request.path[/\A[^?#]*/]] }
        REQUEST.measure(*arguments) do |span|
          super.tap { |response| NetHTTP.set_status(span, response) }
        end
      end

      def connect
        arguments = CONNECTED.read { [address, port] }
        CONNECT.measure(*arguments) { super }
      end
    end

    # @api private
    # Our errors must not block the response.
    def self.set_status(span, response)
      span[:status] = response.code.to_i if REQUEST.enabled?
    rescue StandardError
      nil
    end

    ::Net::HTTP.prepend(Exchange)
  end
end
