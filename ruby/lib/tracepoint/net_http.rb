# frozen_string_literal: true

require "tracepoint"
require_relative "argument_reader"
require "net/http"

module Tracepoint
  # Requests of Net::HTTP as spans `net_http:request`, from when they are written until
  # their response is read, also through the libraries that stand on it.
  #
  #   require "tracepoint/net_http"
  #
  # Arguments: `method`, `host` and `path`, without its query. Result: `status`. Making a
  # connection is a span of its own, `net_http:connect`, with `host` and `port`.
  module NetHTTP
    REQUEST = Tracepoint.define_span(:request, { method: String, host: String, path: String },
                                     provider: :net_http, result: { status: Integer })
    CONNECT = Tracepoint.define_span(:connect, { host: String, port: Integer }, provider: :net_http)
    REQUESTED = ArgumentReader.new(REQUEST)
    CONNECTED = ArgumentReader.new(CONNECT)
    private_constant :REQUESTED, :CONNECTED

    # For Net::HTTP: `request` calls itself where it has to connect first, this is
    # called once.
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
    # No error of ours may keep the response back.
    def self.set_status(span, response)
      span[:status] = response.code.to_i if REQUEST.enabled?
    rescue StandardError
      nil
    end

    ::Net::HTTP.prepend(Exchange)
  end
end
